"""Conversations: what a next turn stands on, in text, ids and chat; and several choices of one request."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.session import ChatMessage
from coordinator.tokenizer import TextCodec
from protos.generation_pb2 import FINISH_REASON_STOP, Chunk
from specdec.core.errors import InvalidArgument
from specdec.core.randomness import choice_seed
from specdec.core.sampling import SamplingParams
from specdec.edge.messages import Refusal
from tests.fakes.scripted import Request
from tests.fakes.stack import Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import FIRST_LETTER, MARKOV_5, MARKOV_5_DRAFT, Logits, Table, counter, letters_folder
from tests.reference import reference_tokens
from tests.toy_tokenizers import EOS_ID, save_folder, toy_vocab_size

SIZE = 60
COUNTER = counter(SIZE)
GREEDY: dict[str, Any] = {"temperature": 0.0, "num_draft_tokens": 4}


def text(ids: Sequence[int]) -> str:
    return "".join(chr(FIRST_LETTER + i) for i in ids)


def counted(context: Sequence[int], k: int) -> list[int]:
    return [(context[-1] + 1 + i) % SIZE for i in range(k)]


async def history(s: Stack, session: str) -> list[int]:
    record = await s.store.load(session)
    assert record is not None
    assert not record.running
    return [int(i) for i in record.token_ids]


@pytest.mark.scenario("B22", "B23")
@pytest.mark.parametrize("eos_at", ["accepted", "bonus", "recovered"])
async def test_five_turns_are_stored_alike_with_and_without_drafts(tmp_path: Path, eos_at: str) -> None:
    """B22, B23: EOS comes as an accepted draft, a bonus or a recovered token; it is stored, and nothing behind it."""
    eos = {"accepted": 12, "bonus": 14, "recovered": 11}[eos_at]

    def propose(context: list[int], k: int) -> list[int]:
        right = counted(context, k)
        return [0 if i == eos and eos_at == "recovered" else i for i in right]

    folder = letters_folder(tmp_path / "m", SIZE, eos_ids=[eos])
    found: list[list[int]] = []
    for k in (4, 0):
        drafter = scripted_drafter(COUNTER, folder, propose=propose)
        async with stack(folder, [scripted_target(COUNTER, folder)], [drafter]) as s:
            session = ""
            for turn in range(5):
                fields = {"token_ids": [20, 9], "max_tokens": 20, "temperature": 0.0, "num_draft_tokens": k}
                answer = await s.generate(**fields, **({"session_id": session} if turn else {}))
                session = answer.started.session_id
                assert answer.complete is not None
                assert answer.complete.finish_reason == FINISH_REASON_STOP
                assert answer.started.prompt_tokens == 2 + turn * (2 + eos - 9)
            found.append(await history(s, session))
    assert found[0] == found[1] == [20, *range(9, eos + 1)] * 5


@pytest.mark.parametrize("kind", ["text", "token_ids"])
async def test_a_next_turn_stands_behind_all_before_it(tmp_path: Path, kind: str) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)

    def prompt(ids: list[int]) -> dict[str, Any]:
        return {"text": text(ids)} if kind == "text" else {"token_ids": ids}

    target = scripted_target(COUNTER, folder)
    async with stack(folder, [target], [scripted_drafter(COUNTER, folder)]) as s:
        first = await s.generate(**prompt([3, 4]), max_tokens=6, **GREEDY)
        session = first.started.session_id
        second = await s.generate(session_id=session, **prompt([30]), max_tokens=3, **GREEDY)
        third = await s.generate(session_id=session, received_tokens=1, **prompt([50]), max_tokens=2, **GREEDY)
        assert await history(s, session) == [3, 4, *range(5, 11), 30, 31, 50, 51, 52]
    assert second.ids == [31, 32, 33]
    assert second.started.prompt_tokens == 9
    assert third.ids == [51, 52]
    assert third.started.prompt_tokens == 11, "what had not been received of the second answer is dropped"
    assert first.started.epoch < second.started.epoch < third.started.epoch
    starts = [r.open.turn_start for r in target.sent(session) if r.open is not None]
    assert starts == [2, 9, 11]


@pytest.mark.scenario("B84")
@pytest.mark.parametrize("knows", [True, False])
async def test_the_turn_after_one_that_was_cancelled_follows_at_once(tmp_path: Path, knows: bool) -> None:
    """B84: turn 3 stands on what the client got of turn 2, if it says so, else on what was committed."""
    folder = letters_folder(tmp_path / "m", SIZE)
    async with stack(folder, [scripted_target(COUNTER, folder)], [scripted_drafter(COUNTER, folder)]) as s:
        session = (await s.generate(token_ids=[3], max_tokens=2, **GREEDY)).started.session_id
        got: list[int] = []
        second = {"session_id": session, "token_ids": [10], "max_tokens": 1000}
        async with aclosing(s.client.generate(**second, **GREEDY)) as events:  # type: ignore[arg-type]
            async for event in events:
                if isinstance(event, Chunk):
                    got += [token.id for token in event.tokens]
                    break
        extra = {"received_tokens": len(got)} if knows else {}
        third = await s.generate(session_id=session, token_ids=[40], max_tokens=3, **extra, **GREEDY)
        stored = await history(s, session)
    assert third.ids == [41, 42, 43]
    kept = stored[4:-4]
    assert stored == [3, 4, 5, 10, *kept, 40, 41, 42, 43]
    assert kept == counted([10], len(kept))
    assert kept == got if knows else kept[: len(got)] == got
    assert third.started.prompt_tokens == len(stored) - 3


def answering(codec: TextCodec, answer: str) -> Table:
    """Says the same in every turn, then EOS."""
    ids = codec.encode(answer, add_bos=False)
    script = [*ids, EOS_ID]

    def logits(context: Sequence[int]) -> Logits:
        said = next((n for n in range(len(ids), 0, -1) if list(context[-n:]) == ids[:n]), 0)
        scores = np.zeros(codec.vocab_size)
        scores[script[said]] = 20.0
        return scores

    return Table(codec.vocab_size, logits, "answering")


@pytest.mark.parametrize("cut", [False, True])
async def test_a_chat_turn_is_the_chat_as_the_template_writes_it(tmp_path: Path, cut: bool) -> None:
    """Also where the answer was cut by length: the template's end of turn is put behind it."""
    folder = save_folder(tmp_path / "m", "byte_level")
    codec = TextCodec.load(str(folder))
    assert codec.vocab_size == toy_vocab_size("byte_level")
    table = answering(codec, "hello a")
    target = scripted_target(table, folder)
    limit = {"max_tokens": 1} if cut else {"max_tokens": 20}
    said = "hello" if cut else "hello a"
    async with stack(folder, [target], [scripted_drafter(table, folder)]) as s:
        first = await s.generate(chat=[{"role": "user", "content": "hi"}], **limit, **GREEDY)
        session = first.started.session_id
        second = await s.generate(session_id=session, chat=[{"role": "user", "content": "again"}], **limit, **GREEDY)
        record = await s.store.load(session)
    assert (first.text, second.text) == (said, said)
    chat = [ChatMessage("user", "hi"), ChatMessage("assistant", said), ChatMessage("user", "again")]
    assert record is not None
    assert list(record.messages) == chat
    assert record.token_ids[: record.turn_start].tolist() == codec.chat_prompt_ids(chat)


async def test_a_conversation_outlives_its_model(tmp_path: Path) -> None:
    """A turn stays with the model that it began on, and so does the next. Once no verifier has that any more, it begins
    on what there is."""
    folder = letters_folder(tmp_path / "m", SIZE)
    both = [
        scripted_target(COUNTER, folder, replica_id=name, info_overrides={"model_fingerprint": name})
        for name in ("old", "new")
    ]
    async with stack(folder, both, []) as s:
        first = await s.generate(token_ids=[1], max_tokens=3, **GREEDY)
        session = first.started.session_id
        used, other = sorted(both, key=lambda target: not target.sent(session))
        for _ in range(4):
            await s.generate(session_id=session, token_ids=[7], max_tokens=3, **GREEDY)
        assert not other.sent(session)
        await s.kill(used)
        await until(lambda: len(s.targets.ready()) == 1)
        last = await s.generate(session_id=session, token_ids=[9], max_tokens=3, **GREEDY)
    assert last.ids == [10, 11, 12] and other.sent(session)


async def test_a_turn_of_another_kind_is_refused_and_the_session_left_free(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "m", "byte_level")
    table = answering(TextCodec.load(str(folder)), "hello")
    async with stack(folder, [scripted_target(table, folder)]) as s:
        chat = (await s.generate(chat=[{"role": "user", "content": "hi"}], max_tokens=9, **GREEDY)).started.session_id
        plain = (await s.generate(text="hi", max_tokens=9, **GREEDY)).started.session_id
        with pytest.raises(InvalidArgument, match="began with chat messages"):
            await s.generate(session_id=chat, text="more", max_tokens=9, **GREEDY)
        with pytest.raises(InvalidArgument, match="began with text or token_ids"):
            await s.generate(session_id=plain, chat=[{"role": "user", "content": "hi"}], max_tokens=9, **GREEDY)
        with pytest.raises(InvalidArgument) as error:
            await s.generate(session_id=plain, received_tokens=99, text="more", max_tokens=9, **GREEDY)
        assert error.value.field == "received_tokens"
        assert (await s.generate(session_id=plain, text="more", max_tokens=9, **GREEDY)).text == "hello"


async def test_each_choice_has_its_own_seed_session_and_end(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        answers = await s.choices(token_ids=[1], max_tokens=30, seed=42, n=4, num_draft_tokens=3)
        assert s.active == 0
    assert sorted(answers) == [0, 1, 2, 3]
    for index, answer in answers.items():
        assert answer.started.seed == choice_seed(42, index)
        assert answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), choice_seed(42, index), 30)
        assert answer.complete is not None
        assert answer.complete.index == index
    assert len({answer.started.session_id for answer in answers.values()}) == 4


async def test_one_choice_that_fails_ends_the_request(tmp_path: Path) -> None:
    """Typed, once, and with nothing left running."""
    folder = letters_folder(tmp_path / "m", 5)

    async def refuse_one(request: Request, reply: Any) -> Any:
        seed = choice_seed(42, 2)
        if request.open is not None and request.open.seed == seed:
            return replace(reply, result=refusal)
        return reply

    refusal = Refusal("EMPTY_LAW", "leave a token possible", "logit_bias")
    target = scripted_target(MARKOV_5, folder, script=refuse_one)
    async with stack(folder, [target]) as s:
        with pytest.raises(InvalidArgument) as error:
            await s.choices(token_ids=[1], max_tokens=3000, seed=42, n=4)
        assert error.value.field == "logit_bias"
        assert s.active == 0
