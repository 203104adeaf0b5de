"""Many requests at once: none sees another's tokens, sessions stay in order, and too many are told to come back."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from coordinator import opening, replica
from protos import generation_pb2_grpc
from specdec.core.errors import FailedPrecondition, ResourceExhausted
from specdec.core.sampling import SamplingParams
from specdec.edge.channel import channel_options
from specdec.edge.client import build_request
from tests.fakes.scripted import Request
from tests.fakes.stack import Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, Logits, Table, counter, letters_folder
from tests.reference import reference_tokens

RANGE, REQUESTS = 5, 16


def after(token: int) -> int:
    """Each request counts within its own five ids."""
    return token // RANGE * RANGE + (token + 1) % RANGE


def own_range(context: Sequence[int]) -> Logits:
    logits = np.zeros(RANGE * REQUESTS)
    logits[after(context[-1])] = 20.0
    return logits


@pytest.mark.scenario("B74")
async def test_no_token_of_one_request_comes_out_of_another(tmp_path: Path) -> None:
    """B74: 16 requests on 16 ranges of ids, drafts of 0 to 5 tokens at random, arriving in random order."""
    chance = random.Random(3)
    table = Table(RANGE * REQUESTS, own_range, "own-range", memory=1)

    def propose(context: list[int], k: int) -> list[int]:
        path = [after(context[-1])]
        while len(path) < k:
            path.append(after(path[-1]))
        return path[: chance.randrange(k + 1)]

    folder = letters_folder(tmp_path / "m", table.vocab_size)
    drafter = scripted_drafter(table, folder, propose=propose)
    async with stack(folder, [scripted_target(table, folder)], [drafter]) as s:
        order = chance.sample(range(REQUESTS), REQUESTS)
        prompts = [r * RANGE + r % RANGE for r in order]
        requests = (s.generate(token_ids=[i], max_tokens=30, temperature=0.0, num_draft_tokens=5) for i in prompts)
        answers = await asyncio.gather(*requests)
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = [prompt]
        while len(expected) <= 30:
            expected.append(after(expected[-1]))
        assert answer.ids == expected[1:]
        assert answer.stats.accepted_tokens


@pytest.mark.scenario("B80", "B81")
async def test_requests_that_join_late_are_as_they_are_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B80, B81: sixteen prompts, two of them equal, join one that is far ahead; one verification breaks on the way."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.02)
    folder = letters_folder(tmp_path / "m", 5)
    broken = False

    async def break_once(request: Request, reply: Any) -> Any:
        nonlocal broken
        if len(target.streams) == 17 and not broken:
            broken = True
            raise RuntimeError("one verification breaks")
        return reply

    target = scripted_target(MARKOV_5, folder, script=break_once)
    async with stack(folder, [target], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        first = asyncio.create_task(s.generate(token_ids=[0], max_tokens=400, seed=100, num_draft_tokens=3))
        await until(lambda: len(target.requests) > 50)
        prompts = [[i % 5, i % 3, *range(i % 4)] for i in (0, *range(15))]
        requests = [
            s.generate(token_ids=prompt, max_tokens=60, seed=len(prompt), num_draft_tokens=3) for prompt in prompts
        ]
        answers = await asyncio.gather(*requests)
        longest = await first
    assert broken
    assert longest.ids == reference_tokens(MARKOV_5.logits, [0], SamplingParams(), 100, 400)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.ids == reference_tokens(MARKOV_5.logits, prompt, SamplingParams(), len(prompt), 60)
    assert len({answer.started.session_id for answer in (longest, *answers)}) == 17


async def next_turn(s: Stack, session: str, prompt: list[int]) -> str:
    try:
        await s.generate(session_id=session, token_ids=prompt, max_tokens=4, temperature=0.0, num_draft_tokens=4)
    except FailedPrecondition as error:
        return error.reason
    return "ok"


@pytest.mark.scenario("B82")
async def test_two_turns_of_one_session_at_once_happen_one_after_the_other(tmp_path: Path) -> None:
    """B82: forty times; the history is that of one serial order, or one of the two was refused."""
    table = counter(40)
    folder = letters_folder(tmp_path / "m", 40)
    async with stack(folder, [scripted_target(table, folder)], [scripted_drafter(table, folder)]) as s:
        opened = await s.generate(token_ids=[0], max_tokens=1, temperature=0.0)
        session = opened.started.session_id
        history = [0, 1]
        for _ in range(40):
            outcomes = await asyncio.gather(next_turn(s, session, [10]), next_turn(s, session, [20]))
            assert set(outcomes) <= {"ok", "SESSION_BUSY"}
            record = await s.store.load(session)
            assert record is not None
            added = record.token_ids.tolist()[len(history) :]
            turns = {"ok": ([10, 11, 12, 13, 14], [20, 21, 22, 23, 24]), "SESSION_BUSY": ([], [])}
            a, b = (turns[outcome][i] for i, outcome in enumerate(outcomes))
            assert added in (a + b, b + a)
            history += added


@pytest.mark.scenario("B82")
async def test_a_running_session_takes_no_new_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B82: FAILED_PRECONDITION, and the turn that runs is not disturbed."""
    monkeypatch.setattr(opening, "BUSY_PATIENCE", 0.05)
    folder = letters_folder(tmp_path / "m", 5)
    gate = asyncio.Event()

    async def wait(request: Request, reply: Any) -> Any:
        if request.cycle == 3:
            await gate.wait()
        return reply

    target = scripted_target(MARKOV_5, folder, script=wait)
    async with stack(folder, [target]) as s:
        running = asyncio.create_task(s.generate(token_ids=[1], max_tokens=20, seed=3))
        await until(lambda: len(target.requests) == 3)
        assert await next_turn(s, target.requests[0][0], [1]) == "SESSION_BUSY"
        gate.set()
        answer = await running
    assert answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 20)


async def test_too_many_requests_are_told_to_come_back(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    gate = asyncio.Event()

    async def wait(request: Request, reply: Any) -> Any:
        await gate.wait()
        return reply

    target = scripted_target(MARKOV_5, folder, script=wait)
    async with stack(folder, [target], max_streams=2) as s:
        running = [asyncio.create_task(s.generate(token_ids=[1], max_tokens=5)) for _ in range(2)]
        await until(lambda: s.active == 2)
        with pytest.raises(ResourceExhausted, match="max_streams") as error:
            await s.generate(token_ids=[1], max_tokens=5)
        assert error.value.retry_after > 0
        assert s.metric("specdec_active_streams") == 2
        gate.set()
        await asyncio.gather(*running)
        assert len((await s.generate(token_ids=[1], max_tokens=5)).ids) == 5


@pytest.mark.parametrize("then", ["reads", "leaves"])
async def test_a_client_that_does_not_read_holds_its_generation_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    """Memory is bounded by the client's window, not by max_tokens. It may read on, or go: a write then fails first."""
    folder = letters_folder(tmp_path / "m", 40)
    target = scripted_target(counter(40), folder)
    fields: dict[str, Any] = {"token_ids": [3], "max_tokens": 300, "temperature": 0.0}
    narrow = [*channel_options(), ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 512)]
    async with stack(folder, [target]) as s, grpc.aio.insecure_channel(s.address, options=narrow) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(build_request(**fields))
        await until(lambda: len(target.requests) > 0)
        session = target.requests[0][0]
        await s.generate(**fields)
        assert len(target.sent(session)) < 60, "the one beside it, which is read, is through with 300"
        assert s.active == 1
        if then == "reads":
            ids = [token.id async for response in call for token in response.chunk.tokens]
            assert ids == [(4 + i) % 40 for i in range(300)]
        else:
            call.cancel()
        await until(lambda: s.active == 0 and not target.streams)
        outcome = "ok" if then == "reads" else "cancelled"
        await until(lambda: s.metric("specdec_requests_total", outcome=outcome) == 1 + (then == "reads"))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
