"""Where a turn ends inside an accepted block: nothing behind the end is sent, counted or stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator import replica
from coordinator.generation import Generation
from protos.generation_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP
from specdec.core.errors import SpecdecError
from specdec.core.sampling import SamplingParams
from tests.fakes.scripted import Scripted
from tests.fakes.stack import Answer, Stack, scripted_drafter, scripted_target, stack
from tests.fakes.tables import FIRST_LETTER, constant, counter, letters_folder
from tests.reference import reference_tokens

SIZE = 80
COUNTER = counter(SIZE)


def oracle(context: Sequence[int], k: int) -> list[int]:
    """What the counter says next."""
    return [(context[-1] + 1 + i) % SIZE for i in range(k)]


def text(ids: Sequence[int]) -> str:
    return "".join(chr(FIRST_LETTER + i) for i in ids)


@asynccontextmanager
async def counting(
    tmp_path: Path, *, eos_ids: Sequence[int] = (), **target: Any
) -> AsyncIterator[tuple[Stack, Scripted, Scripted]]:
    folder = letters_folder(tmp_path / "m", SIZE, eos_ids=eos_ids)
    verifier = scripted_target(COUNTER, folder, **target)
    drafter = scripted_drafter(COUNTER, folder, propose=oracle)
    async with stack(folder, [verifier], [drafter]) as s:
        yield s, verifier, drafter


async def stored(s: Stack, answer: Answer) -> list[int]:
    record = await s.store.load(answer.started.session_id)
    assert record is not None, "the session is gone"
    assert not record.running
    return [int(i) for i in record.token_ids]


async def delivered_equals_counted_and_stored(s: Stack, answer: Answer, prompt: list[int]) -> None:
    assert answer.complete is not None
    assert answer.complete.usage.completion_tokens == len(answer.ids)
    assert await stored(s, answer) == prompt + answer.ids
    emitted = s.metric("specdec_num_emitted_tokens_total")
    assert emitted == len(answer.ids)
    stats = answer.stats
    assert len(answer.ids) == stats.accepted_tokens + stats.cycles - stats.cut_tokens


@pytest.mark.scenario("B38")
@pytest.mark.parametrize("offset", range(10))
async def test_eos_ends_the_turn_wherever_in_a_block_it_stands(tmp_path: Path, offset: int) -> None:
    """B38: two blocks of four draft tokens and a bonus; EOS is each of them in turn."""
    eos = 5 + offset
    async with counting(tmp_path, eos_ids=[eos]) as (s, _, _):
        answer = await s.generate(token_ids=[4], max_tokens=30, temperature=0.0, num_draft_tokens=4)
        await delivered_equals_counted_and_stored(s, answer, [4])
    assert answer.ids == list(range(5, eos + 1))
    assert answer.text == text(range(5, eos)), "EOS is counted, not shown"
    assert answer.complete is not None
    assert answer.complete.finish_reason == FINISH_REASON_STOP
    assert answer.stats.cut_tokens == (-(offset + 1)) % 5


@pytest.mark.scenario("B40", "B115")
async def test_a_block_that_crosses_max_tokens_is_drafted_to_measure(tmp_path: Path) -> None:
    """B40, B115: eight tokens in blocks of five: the second block is asked for three."""
    async with counting(tmp_path) as (s, _, _):
        answer = await s.generate(token_ids=[4], max_tokens=8, temperature=0.0, num_draft_tokens=4)
        await delivered_equals_counted_and_stored(s, answer, [4])
    assert answer.ids == list(range(5, 13))
    assert answer.complete is not None
    assert answer.complete.finish_reason == FINISH_REASON_LENGTH
    assert answer.stats.cut_tokens == 0


@pytest.mark.scenario("B39", "B129")
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
async def test_drafts_leave_room_for_the_last_token(tmp_path: Path, max_tokens: int) -> None:
    """B39, B129: at one token left no draft is asked for, by n-gram or by a drafter with trees."""
    prompt = [5, 6, 7, 8, 9, 7, 8]
    async with counting(tmp_path) as (s, verifier, drafter):
        for name in ("ngram", "lm"):
            answer = await s.generate(
                token_ids=prompt, max_tokens=max_tokens, temperature=0.0, num_draft_tokens=3, drafter=name
            )
            assert len(answer.ids) == max_tokens
            left = max_tokens
            for request in verifier.sent(answer.started.session_id):
                assert request.tree.num_draft_tokens <= left - 1
                left -= 1
            assert not answer.stats.fallbacks, "the n-gram is no fallback where it was asked for"
        assert all(request.num_draft_tokens <= max_tokens - 1 for _, request in drafter.requests)
        assert len(drafter.requests) == (max_tokens > 1)


@pytest.mark.scenario("B41")
@pytest.mark.parametrize("k", [0, 4])
async def test_ends_are_masked_until_min_tokens_at_every_row(tmp_path: Path, k: int) -> None:
    """B41: both EOS ids are what the target likes best; the first three tokens must be others."""
    table = constant([0.05, 0.1, 0.4, 0.3, 0.15])
    folder = letters_folder(tmp_path / "m", 5, eos_ids=[2, 3])
    async with stack(folder, [scripted_target(table, folder)], [scripted_drafter(table, folder)]) as s:
        greedy = await s.generate(token_ids=[0], min_tokens=3, max_tokens=9, temperature=0.0, num_draft_tokens=k)
        early = await s.generate(
            token_ids=[0], min_tokens=2, max_tokens=9, temperature=0.0, num_draft_tokens=k, stop=[text([4])]
        )
        sampled = [
            await s.generate(token_ids=[0], min_tokens=3, max_tokens=9, seed=seed, num_draft_tokens=k)
            for seed in range(5)
        ]
    assert greedy.ids == [4, 4, 4, 2]
    assert early.ids == [4, 4], "a stop string that would end too early is ordinary text"
    assert early.text == text([4])
    params = SamplingParams(min_tokens=3, end_ids=(2, 3))
    for seed, answer in enumerate(sampled):
        assert answer.ids == reference_tokens(table.logits, [0], params, seed, 9)[: len(answer.ids)]
        assert not {2, 3} & set(answer.ids[:3])
        assert len(answer.ids) == 9 or answer.ids[-1] in (2, 3)


STOPS = [
    ([5, 6], 7),  # complete within the first tokens of a long block
    ([9, 10], 4),  # the end of one block and the beginning of the next
    ([7, 8, 9, 10, 11, 12], 4),
    ([7, 8, 9, 10, 11, 12], 1),
    ([7, 8, 9, 10, 11, 12], 0),
]


@pytest.mark.scenario("B36", "B37", "B67", "B115")
@pytest.mark.parametrize(("stop", "k"), STOPS)
async def test_a_stop_string_ends_text_and_ids_alike(tmp_path: Path, stop: list[int], k: int) -> None:
    """B36, B37, B67, B115: no character of the stop is sent, no token behind it counted, however blocks fall."""
    async with counting(tmp_path) as (s, _, _):
        answer = await s.generate(
            token_ids=[4], max_tokens=40, temperature=0.0, num_draft_tokens=k, stop=[text(stop)], logprobs=1
        )
        await delivered_equals_counted_and_stored(s, answer, [4])
    assert answer.ids == list(range(5, stop[-1] + 1))
    assert answer.text == text(range(5, stop[0]))
    tokens = [token for chunk in answer.chunks for token in chunk.tokens]
    assert all(token.HasField("logprob") and len(token.top_logprobs) == 1 for token in tokens)
    assert answer.complete is not None
    assert answer.complete.stop == text(stop)
    assert answer.complete.finish_reason == FINISH_REASON_STOP


@pytest.mark.scenario("B67")
@pytest.mark.parametrize("k", [0, 1, 3])
async def test_text_that_only_looked_like_a_stop_is_sent_after_all(tmp_path: Path, k: int) -> None:
    """B67: held back while it may become the stop, sent when it does not."""
    async with counting(tmp_path) as (s, _, _):
        answer = await s.generate(
            token_ids=[4],
            max_tokens=12,
            temperature=0.0,
            num_draft_tokens=k,
            stop=[text([7, 8, 9, 30]), text([16, 17])],
        )
    assert answer.text == text(range(5, 17))
    assert [len(chunk.text) for chunk in answer.chunks] != [len(chunk.tokens) for chunk in answer.chunks]


@pytest.mark.scenario("B69", "B73")
@pytest.mark.parametrize("prompt_tokens", [58, 60, 62, 63])
async def test_a_turn_fills_its_context_to_the_last_position(tmp_path: Path, prompt_tokens: int) -> None:
    """B69, B73: 64 positions; the verifier reports any position beyond, and drafts are cut to the room left."""
    async with counting(tmp_path, max_context=64) as (s, _, _):
        prompt = list(range(prompt_tokens))
        answer = await s.generate(token_ids=prompt, max_tokens=20, temperature=0.0, num_draft_tokens=5)
        exact = await s.generate(token_ids=[4, 5], max_tokens=62, temperature=0.0, num_draft_tokens=4)
    for got, room in ((answer, 64 - prompt_tokens), (exact, 62)):
        assert len(got.ids) == room
        assert got.complete is not None
        assert got.complete.finish_reason == FINISH_REASON_LENGTH


@pytest.mark.scenario("B77")
async def test_a_request_near_its_limit_beside_others(tmp_path: Path) -> None:
    """B77: its k shrinks to nothing, theirs does not, and all get what the target alone would give."""
    async with counting(tmp_path, max_context=64) as (s, verifier, _):
        prompts = [list(range(62)), *([i] for i in range(7))]
        requests = (
            s.generate(token_ids=prompt, max_tokens=30, temperature=0.0, num_draft_tokens=4) for prompt in prompts
        )
        answers = await asyncio.gather(*requests)
        short = verifier.sent(answers[0].started.session_id)
    for prompt, answer in zip(prompts, answers, strict=True):
        room = min(30, 64 - len(prompt))
        assert answer.ids == oracle(prompt, room)
    assert [request.tree.num_draft_tokens for request in short] == [1]


@pytest.mark.scenario("B39", "B69")
async def test_drafts_that_ignore_the_room_left_do_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: k is not cut, and the scripted verifier sees positions that do not exist."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(Generation, "_choose", lambda self: self._sources.fixed(5))
    with pytest.raises(AssertionError, match="does not fit"):
        async with counting(tmp_path, max_context=16) as (s, _, _):
            with suppress(SpecdecError):
                await s.generate(token_ids=[4], max_tokens=40, temperature=0.0, num_draft_tokens=5)
