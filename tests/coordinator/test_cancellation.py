"""The client goes, in whatever phase the cycle is: both streams close, the session is free, no task is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from coordinator.choice import Choice
from coordinator.generation import Generation
from coordinator.responses import Writer
from coordinator.stream import CycleStream
from protos.generation_pb2 import Chunk
from specdec.core.errors import DeadlineExceeded, SpecdecError
from specdec.edge.client import Client
from tests.fakes.scripted import Request, Scripted, honest, silent
from tests.fakes.stack import Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.stores import GatedStore
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, letters_folder

LONG: dict[str, Any] = {"token_ids": [1], "max_tokens": 10_000, "num_draft_tokens": 3}


class Rig:
    """A coordinator with one verifier, one drafter and a store that can wait."""

    def __init__(self, s: Stack, target: Scripted, drafter: Scripted, store: GatedStore) -> None:
        self.stack, self.target, self.drafter, self.store = s, target, drafter, store
        self.baseline = 0

    async def is_clean(self) -> None:
        """Soon nothing is left of any request: no call, no stream, no task."""
        await until(lambda: self.stack.active == 0)
        await until(lambda: not self.target.streams and not self.drafter.streams)
        await until(lambda: all(not entry.record.running for entry in self.store._entries.values()))
        await until(lambda: len(asyncio.all_tasks()) <= self.baseline)
        assert all(r.inflight == 0 for pool in (self.stack.targets, self.stack.drafters) for r in pool.members())

    async def serves(self) -> None:
        answer = await self.stack.generate(token_ids=[1], max_tokens=12, num_draft_tokens=3)
        assert len(answer.ids) == 12


@asynccontextmanager
async def rig(tmp_path: Path, **settings: Any) -> AsyncIterator[Rig]:
    folder = letters_folder(tmp_path / "m", 5)
    target, drafter, store = scripted_target(MARKOV_5, folder), scripted_drafter(MARKOV_5_DRAFT, folder), GatedStore()
    async with stack(folder, [target], [drafter], store=store, **settings) as s:
        made = Rig(s, target, drafter, store)
        await made.serves()
        await until(lambda: s.active == 0 and not target.streams and not drafter.streams)
        made.baseline = len(asyncio.all_tasks())
        yield made
        await made.is_clean()


def hangs_at(cycle: int) -> Any:
    async def script(request: Request, reply: Any) -> Any:
        return await silent(request, reply) if request.cycle == cycle else reply

    return script


async def prepare(r: Rig, phase: str) -> None:
    if phase == "no verifier yet":
        await r.stack.kill(r.target)
        await until(lambda: not r.stack.targets.ready())
    elif phase == "prefill":
        r.target.script = hangs_at(1)
    elif phase == "draft":
        r.drafter.script = hangs_at(3)
    elif phase == "verify":
        r.target.script = hangs_at(3)
    elif phase == "commit":
        r.store.gate.clear()


def reached(r: Rig, phase: str, before: int) -> bool:
    sent = len(r.target.requests) - before
    return {
        "no verifier yet": r.stack.active == 1,
        "prefill": sent == 1,
        "draft": sent == 2 and len(r.drafter.streams) == 1,
        "verify": sent == 3,
        "commit": r.store.waiting > 0,
    }[phase]


PHASES = ["no verifier yet", "prefill", "draft", "verify", "commit"]


@pytest.mark.scenario("B83", "B86", "B87")
@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_leaves_takes_everything_with_it(
    tmp_path: Path, phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B83, B86, B87: cancelled before admission, in prefill, in a draft, in a verify, in a commit."""
    async with rig(tmp_path) as r:
        await prepare(r, phase)
        before = len(r.target.requests)
        running = asyncio.create_task(r.stack.generate(**LONG))
        await until(lambda: reached(r, phase, before))
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        r.store.gate.set()
        if phase == "no verifier yet":
            await r.stack.revive(r.target)
        await r.is_clean()
        r.target.script = r.drafter.script = honest
        await r.serves()
        assert r.store.log.count("release") == (phase != "no verifier yet"), "cleaned up once"
        assert r.stack.metric("specdec_requests_total", outcome="cancelled") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.scenario("B83", "B88")
@pytest.mark.parametrize("how", ["cancel", "close the channel"])
async def test_no_work_is_done_for_a_client_that_has_gone(tmp_path: Path, how: str) -> None:
    """B83, B88: of 10,000 tokens three chunks are read; a cycle later nothing moves any more."""
    async with rig(tmp_path) as r:
        async with Client(r.stack.address) as client, aclosing(client.generate(**LONG)) as events:
            for _ in range(4):
                await anext(events)
            if how == "cancel":
                await events.aclose()
        seen = len(r.target.requests)
        await r.is_clean()
        left = len(r.target.requests)
        await r.serves()
        assert left - seen < 20
        session = r.target.requests[-1][0]
        assert all(name == session for name, _ in r.target.requests[left:]), "only the probe was verified since"


@pytest.mark.scenario("B83")
async def test_a_request_that_ends_well_aborts_nothing(tmp_path: Path) -> None:
    """B83: the first fix of the leak aborted every stream that had finished."""
    async with rig(tmp_path) as r:
        for _ in range(5):
            await r.serves()
        assert r.stack.metric("specdec_requests_total", outcome="ok") == 6
        assert r.stack.metric("specdec_requests_total") == 6
        assert "release" not in r.store.log


@pytest.mark.scenario("B87")
async def test_two_hundred_clients_that_leave_at_random_moments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B87: after 0 to 7 events, at once or while others run; the server serves on and nothing piles up."""
    chance = random.Random(5)
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    async with rig(tmp_path) as r:

        async def leave(after: int) -> None:
            async with aclosing(r.stack.client.generate(**LONG)) as events:
                for _ in range(after):
                    await anext(events)

        for _ in range(10):
            await asyncio.gather(*(leave(chance.randrange(8)) for _ in range(20)))
        await r.is_clean()
        await r.serves()
        assert r.stack.metric("specdec_active_streams") == 0
    assert not unhandled
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.scenario("B104")
@pytest.mark.parametrize("whose", ["the client's", "the server's"])
async def test_a_deadline_ends_the_work_inside(tmp_path: Path, whose: str) -> None:
    """B104: the verifier hangs; the client hears DEADLINE_EXCEEDED, and the replicas' streams are gone."""
    settings = {"request_timeout": 1.0} if whose == "the server's" else {}
    deadline = {"deadline": 1.0} if whose == "the client's" else {}
    async with rig(tmp_path, **settings) as r:
        r.target.script = silent
        async with asyncio.timeout(10):
            with pytest.raises(DeadlineExceeded):
                await r.stack.generate(**LONG, **deadline)
        await r.is_clean()
        r.target.script = honest
        await r.serves()


@pytest.mark.scenario("B104")
async def test_replicas_are_told_no_more_time_than_the_request_has_left(tmp_path: Path) -> None:
    """B104: a budget shrinks on its way. The first message of a stream has it whole."""
    firsts = []
    async with rig(tmp_path, verify_timeout=60.0, draft_timeout=60.0) as r:
        for deadline in ({}, {"deadline": 20.0}):
            before = len(r.target.requests), len(r.drafter.requests)
            await r.stack.generate(token_ids=[1], max_tokens=8, num_draft_tokens=2, **deadline)
            firsts.append((r.target.requests[before[0]][1].budget_us, r.drafter.requests[before[1]][1].budget_us))
    assert firsts[0] == (60e6, 48e6)
    assert min(firsts[1]) > 0 and max(firsts[1]) <= 21e6, firsts[1]


@pytest.mark.scenario("B86")
async def test_a_cleanup_that_takes_its_time_still_happens(tmp_path: Path) -> None:
    """B86: the store answers the release late; until then the session is not free, then it is."""
    async with rig(tmp_path) as r:
        r.target.script = hangs_at(3)
        before = len(r.target.requests)
        running = asyncio.create_task(r.stack.generate(**LONG))
        await until(lambda: len(r.target.requests) == before + 3 and not r.store.waiting)
        r.store.gate.clear()
        running.cancel()
        await until(lambda: r.store.waiting == 1)
        assert r.stack.active == 1
        await until(lambda: not r.target.streams and not r.drafter.streams)
        r.store.gate.set()
        await r.is_clean()


@pytest.mark.scenario("B86")
async def test_a_write_that_fails_is_a_client_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B86: sometimes the failing write is heard of before the cancellation itself; it is no error of ours."""
    real = Writer.write

    async def write(self: Writer, event: Any) -> None:
        if isinstance(event, Chunk) and event.offset > 10:
            raise grpc.aio.InternalError("Failed execute_batch")
        await real(self, event)

    async with rig(tmp_path) as r:
        monkeypatch.setattr(Writer, "write", write)
        with pytest.raises(SpecdecError):
            await r.stack.generate(**LONG)
        await r.is_clean()
        assert r.stack.metric("specdec_requests_total", outcome="cancelled") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.scenario("B92")
async def test_a_cancelled_generation_is_gone_without_a_collection_of_garbage(tmp_path: Path) -> None:
    """B92: what is left of it holds its caller's socket."""
    folder = letters_folder(tmp_path / "m", 5)

    def alive() -> int:
        """The calls among them are the client's own and those to replicas."""
        kinds = (Choice, Generation, CycleStream, grpc.aio.UnaryStreamCall, grpc.aio.StreamStreamCall)
        return sum(issubclass(type(each), kinds) for each in gc.get_objects())

    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        gc.collect()
        before = alive()  # pools watch their replicas
        gc.disable()
        try:
            for _ in range(3):
                async with aclosing(s.client.generate(token_ids=[1], max_tokens=4000)) as events:
                    async for event in events:
                        if isinstance(event, Chunk) and event.offset > 5:
                            break
                await until(lambda: s.active == 0)
            await until(lambda: alive() == before)
        finally:
            gc.enable()
