"""A turn that lost its owner is taken up again: nothing lost, nothing twice, and the same tokens as undisturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from protos.generation_pb2 import TOKEN_ORIGIN_REPLAYED, Chunk, Started
from specdec.core.errors import Aborted, InvalidArgument, NotFound, SpecdecError
from specdec.core.sampling import SamplingParams
from tests.fakes.scripted import Request, silent
from tests.fakes.stack import Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.stores import GatedStore
from tests.fakes.tables import FIRST_LETTER, MARKOV_5, MARKOV_5_DRAFT, counter, letters_folder
from tests.reference import reference_tokens

TOKENS = 40


def text(ids: Sequence[int]) -> str:
    return "".join(chr(FIRST_LETTER + i) for i in ids)


async def interrupted(folder: Path, store: GatedStore, cycle: int, **fields: Any) -> tuple[str, list[int], str]:
    """A coordinator dies while it waits for this cycle's verification: session, ids and text that the client got."""

    async def hang(request: Request, reply: Any) -> Any:
        return await silent(request, reply) if request.cycle == cycle else reply

    target = scripted_target(MARKOV_5, folder, script=hang)
    session, chunks = "", list[Chunk]()
    async with stack(folder, [target], [scripted_drafter(MARKOV_5_DRAFT, folder)], store=store) as s:

        async def read() -> None:
            nonlocal session
            async for event in s.client.generate(**fields):
                if isinstance(event, Started):
                    session = event.session_id
                elif isinstance(event, Chunk):
                    chunks.append(event)

        reading = asyncio.create_task(read())
        await until(lambda: len(target.requests) == cycle and len(chunks) == cycle - 1)
        await s.server.stop()
        with pytest.raises(SpecdecError):
            await reading
    ids = [token.id for chunk in chunks for token in chunk.tokens]
    return session, ids, "".join(chunk.text for chunk in chunks)


@pytest.mark.scenario("B24", "B99")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("missed", [0, 1, 100])
async def test_a_turn_outlives_its_coordinator(tmp_path: Path, temperature: float, missed: int) -> None:
    """B24, B99: the client has all that was sent, all but one token, or nothing; it gets exactly the rest."""
    folder, store = letters_folder(tmp_path / "m", 5), GatedStore()
    fields = {"token_ids": [1], "max_tokens": TOKENS, "seed": 3, "temperature": temperature, "num_draft_tokens": 3}
    session, ids, _ = await interrupted(folder, store, 6, **fields)
    received = max(0, len(ids) - missed)
    expected = reference_tokens(MARKOV_5.logits, [1], SamplingParams(temperature=temperature), 3, TOKENS)
    target = scripted_target(MARKOV_5, folder)
    async with stack(folder, [target], [scripted_drafter(MARKOV_5_DRAFT, folder)], store=store) as s:
        answer = await s.generate(session_id=session, received_tokens=received)
        assert s.metric("specdec_resumes_total") == 1
        again = await s.generate(session_id=session, received_tokens=received)
    assert ids[:received] + answer.ids == expected
    assert answer.text == text(expected[received:])
    assert answer.started.seed == 3
    assert answer.started.epoch > 1
    origins = [token.origin for chunk in answer.chunks for token in chunk.tokens]
    assert origins.count(TOKEN_ORIGIN_REPLAYED) == len(ids) - received
    assert answer.complete is not None
    assert answer.complete.usage.completion_tokens == TOKENS
    assert (again.ids, again.text) == (answer.ids, answer.text), "a finished turn is replayed, and nothing generated"
    assert again.complete is not None
    assert again.complete.finish_reason == answer.complete.finish_reason
    assert not target.sent(session)[0].offset
    record = await store.load(session)
    assert record is not None
    assert not record.running
    assert record.token_ids.tolist() == [1, *expected]


async def test_an_unseeded_turn_goes_on_with_its_stored_seed(tmp_path: Path) -> None:
    """Its first cycles are not drawn anew, and the p/q rule goes on under the seed that `started` told."""
    folder, store = letters_folder(tmp_path / "m", 5), GatedStore()
    session, ids, _ = await interrupted(folder, store, 6, token_ids=[1], max_tokens=TOKENS, num_draft_tokens=3)
    before = await store.load(session)
    assert before is not None
    async with stack(
        folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)], store=store
    ) as s:
        answer = await s.generate(session_id=session, received_tokens=0)
        undisturbed = await s.generate(
            token_ids=[1], max_tokens=TOKENS, seed=before.turn.seed, num_draft_tokens=3, verification="block"
        )
    assert answer.started.seed == before.turn.seed
    assert answer.started.verification == "block"
    assert answer.ids[: len(ids)] == ids
    assert answer.ids == undisturbed.ids, "the same drafter, k and cycle history: the same draws"


async def test_text_that_was_held_back_is_part_of_the_rest(tmp_path: Path) -> None:
    """Ids are sent when committed, text may lag behind for a possible stop: the resume sends text(all) - text(n)."""
    folder = letters_folder(tmp_path / "m", 40)
    target = scripted_target(counter(40), folder)
    stop = text([7, 8, 9, 30])
    async with stack(folder, [target]) as s:
        whole = await s.generate(token_ids=[4], max_tokens=9, temperature=0.0, stop=[stop])
        pieces = [token.text for chunk in whole.chunks for token in chunk.tokens]
        assert pieces[2:6] == ["", "", "", text([7, 8, 9, 10])]
        for received in range(10):
            rest = await s.generate(session_id=whole.started.session_id, received_tokens=received)
            assert rest.ids == whole.ids[received:]
            assert rest.text == "".join(pieces[received:])
    assert whole.text == text(range(5, 14))


@pytest.mark.scenario("B52")
async def test_the_older_owner_of_a_resumed_turn_is_stopped(tmp_path: Path) -> None:
    """B52: two streams for one turn; the older one ends ABORTED with its next commit; the record has one history."""
    folder = letters_folder(tmp_path / "m", 5)
    gate = asyncio.Event()

    async def hold(request: Request, reply: Any) -> Any:
        if request.cycle == 4 and len(target.streams) == 1 and not gate.is_set():
            await gate.wait()
        return reply

    target = scripted_target(MARKOV_5, folder, script=hold)
    expected = reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, TOKENS)
    async with stack(folder, [target], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        older = asyncio.create_task(s.generate(token_ids=[1], max_tokens=TOKENS, seed=3, num_draft_tokens=3))
        await until(lambda: len(target.requests) == 4)
        session = target.requests[0][0]
        newer = await s.generate(session_id=session, received_tokens=0)
        gate.set()
        with pytest.raises(Aborted) as error:
            await older
        assert error.value.reason == "SUPERSEDED"
        record = await s.store.load(session)
    assert newer.ids == expected
    assert record is not None
    assert record.token_ids.tolist() == [1, *expected]
    assert record.finish == "length"
    assert not record.running


async def test_a_mistaken_resume_disturbs_nobody(tmp_path: Path) -> None:
    """More tokens received than there are: refused by name, and the stream that runs goes on."""
    folder = letters_folder(tmp_path / "m", 5)
    gate = asyncio.Event()

    async def hold(request: Request, reply: Any) -> Any:
        if request.cycle == 4:
            await gate.wait()
        return reply

    target = scripted_target(MARKOV_5, folder, script=hold)
    async with stack(folder, [target]) as s:
        running = asyncio.create_task(s.generate(token_ids=[1], max_tokens=TOKENS, seed=3))
        await until(lambda: len(target.requests) == 4)
        with pytest.raises(InvalidArgument) as error:
            await s.generate(session_id=target.requests[0][0], received_tokens=9)
        assert error.value.field == "received_tokens"
        with pytest.raises(NotFound):
            await s.generate(session_id="nobody", received_tokens=0)
        gate.set()
        answer = await running
    assert answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, TOKENS)


async def test_a_resume_keeps_what_was_made_when_verifiers_have_become_smaller(tmp_path: Path) -> None:
    """The turn was cut to fit 64 positions; today's verifiers hold 32, and its first 40 tokens are there already."""
    folder, store = letters_folder(tmp_path / "m", 5), GatedStore()
    async with AsyncExitStack() as exits:
        s = await exits.enter_async_context(
            stack(folder, [scripted_target(MARKOV_5, folder, max_context=64)], store=store)
        )
        await _cut_after(s, 40)
    (session,) = store._entries
    async with stack(folder, [scripted_target(MARKOV_5, folder, max_context=32)], store=store) as s:
        answer = await s.generate(session_id=session, received_tokens=0)
    assert len(answer.ids) >= 40
    assert answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, len(answer.ids))


async def _cut_after(s: Stack, tokens: int) -> None:
    got = 0
    async with aclosing(s.client.generate(token_ids=[1], max_tokens=63, seed=3)) as events:
        async for event in events:
            got += len(event.tokens) if isinstance(event, Chunk) else 0
            if got >= tokens:
                return
