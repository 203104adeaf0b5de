"""Commit, then emit: nothing reaches the client that a crash could take back, and the next cycle need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.generation import Generation
from coordinator.responses import Writer
from protos.generation_pb2 import Chunk, Started
from specdec.core.errors import SpecdecError, Unavailable
from specdec.core.sampling import SamplingParams
from tests.fakes.scripted import Scripted
from tests.fakes.stack import Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.stores import GatedStore
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, letters_folder
from tests.reference import reference_tokens

SEEDED: dict[str, Any] = {"token_ids": [1], "seed": 3, "num_draft_tokens": 3}


@asynccontextmanager
async def serving(
    tmp_path: Path, store: GatedStore, **settings: Any
) -> AsyncIterator[tuple[Stack, Scripted, Scripted]]:
    folder = letters_folder(tmp_path / "m", 5)
    target, drafter = scripted_target(MARKOV_5, folder), scripted_drafter(MARKOV_5_DRAFT, folder)
    async with stack(folder, [target], [drafter], store=store, **settings) as s:
        yield s, target, drafter


async def collect(s: Stack, events: list[Any], **fields: Any) -> None:
    async for event in s.client.generate(**SEEDED, **fields):
        events.append(event)


def ids_of(events: list[Any]) -> list[int]:
    return [token.id for event in events if isinstance(event, Chunk) for token in event.tokens]


def stored(store: GatedStore) -> list[int]:
    return [int(i) for entry in store._entries.values() for i in entry.record.output_ids]


async def test_the_next_cycle_is_under_way_while_a_commit_waits_and_only_emission_waits(tmp_path: Path) -> None:
    store = GatedStore()
    store.gate.clear()
    events: list[Any] = []
    async with serving(tmp_path, store) as (s, target, drafter):
        running = asyncio.create_task(collect(s, events, max_tokens=40))
        await until(lambda: len(target.requests) == 3 and store.waiting == 1)
        await s.client.info()  # the loop has gone round: whatever could have been sent, was
        assert [type(event) for event in events] == [Started], "nothing is emitted before its commit"
        assert len(drafter.requests) == 3, "two cycles ahead of the commit, and no further"
        assert store.log == ["append"]
        assert stored(store) == []
        store.gate.set()
        await running
    assert ids_of(events) == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 40)


async def test_whatever_was_emitted_had_been_stored_before(tmp_path: Path) -> None:
    """At each chunk's arrival the store holds it; the tokens of the whole stream are the record's."""
    store = GatedStore()
    async with serving(tmp_path, store) as (s, _, _):
        got = 0
        async for event in s.client.generate(**SEEDED, max_tokens=60):
            if isinstance(event, Chunk):
                got += len(event.tokens)
                assert len(stored(store)) >= got


async def test_to_emit_before_the_commit_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the tests above."""

    async def hasty(self: Generation) -> None:
        while (cycle := await self._outbox.get()) is not None:
            await self._emit(cycle)
            await self._commit(cycle)

    monkeypatch.setattr(Generation, "_deliver", hasty)
    store = GatedStore()
    store.gate.clear()
    events: list[Any] = []
    async with serving(tmp_path, store) as (s, _, _):
        running = asyncio.create_task(collect(s, events, max_tokens=40))
        await until(lambda: len(ids_of(events)) > len(stored(store)))
        store.gate.set()
        await running


@pytest.mark.scenario("B111")
async def test_a_store_that_goes_down_ends_the_stream_with_what_is_stored(tmp_path: Path) -> None:
    """B111: UNAVAILABLE, nothing emitted that is not stored; once it is back, a resume gives exactly the rest."""
    store = GatedStore()
    events: list[Any] = []
    async with serving(tmp_path, store) as (s, target, drafter):
        running = asyncio.create_task(collect(s, events, max_tokens=400))
        await until(lambda: len(ids_of(events)) > 20)
        store.down = True
        with pytest.raises(Unavailable) as error:
            await running
        assert error.value.reason == "STORE_UNAVAILABLE"
        emitted = ids_of(events)
        assert stored(store)[: len(emitted)] == emitted
        await until(lambda: s.active == 0 and not target.streams and not drafter.streams)
        with pytest.raises(Unavailable):
            await s.generate(**SEEDED, max_tokens=4)
        store.down = False
        session = events[0].session_id
        rest = await s.generate(session_id=session, received_tokens=len(emitted))
    assert emitted + rest.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 400)


@pytest.mark.parametrize("lost", [1, 5, 12])
async def test_a_store_that_lost_commits_is_given_them_again(tmp_path: Path, lost: int) -> None:
    """A failover of the store took acknowledged writes along; the live owner writes its record whole."""
    store = GatedStore()
    async with serving(tmp_path, store) as (s, _, _):
        events: list[Any] = []

        async def run() -> None:
            async for event in s.client.generate(**SEEDED, max_tokens=60):
                events.append(event)
                if len(ids_of(events)) > 20 and "replace" not in store.log:
                    store.lost = lost

        await run()
        record = await s.store.load(events[0].session_id)
    expected = reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 60)
    assert ids_of(events) == expected
    assert "replace" in store.log
    assert record is not None
    assert record.token_ids.tolist() == [1, *expected]
    assert (record.finish, record.running) == ("length", False)


@pytest.mark.scenario("B109")
async def test_a_record_that_expired_under_its_owner_is_written_anew(tmp_path: Path) -> None:
    """B109: gone between two commits: the whole state comes back, with its life."""
    store = GatedStore()
    async with serving(tmp_path, store) as (s, _, _):
        answer_ids: list[int] = []
        session = ""
        async for event in s.client.generate(**SEEDED, max_tokens=60):
            if isinstance(event, Started):
                session = event.session_id
            elif isinstance(event, Chunk):
                answer_ids += [token.id for token in event.tokens]
                if 10 < len(answer_ids) < 20:
                    store._entries.pop(session, None)
        record = await s.store.load(session)
    assert record is not None
    assert record.token_ids.tolist() == [1, *answer_ids]
    assert answer_ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 60)
    assert not record.running


async def test_a_long_verification_keeps_its_session_alive(tmp_path: Path) -> None:
    """Heartbeats come while nothing is committed; a newer owner is heard of through them too."""
    store = GatedStore(lease=0.3)
    beats = 0
    real = store.heartbeat

    async def heartbeat(session_id: str, epoch: int) -> None:
        nonlocal beats
        beats += 1
        await real(session_id, epoch)

    store.heartbeat = heartbeat  # type: ignore[method-assign]
    gate = asyncio.Event()

    async def hold(request: Any, reply: Any) -> Any:
        if request.cycle == 3:
            await gate.wait()
        return reply

    async with serving(tmp_path, store, session_lease=0.3) as (s, target, _):
        target.script = hold
        running = asyncio.create_task(s.generate(**SEEDED, max_tokens=40))
        await until(lambda: beats >= 5)
        assert not running.done()
        session = target.requests[0][0]
        await store.take(session, resume=True)
        with pytest.raises(SpecdecError) as error:
            await running
        assert error.value.reason == "SUPERSEDED"
        await until(lambda: s.active == 0 and not target.streams)


async def test_a_turn_that_ended_is_not_undone_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads the last chunk late, and meanwhile another connection has begun the next turn."""
    unread, take_it = asyncio.Event(), asyncio.Event()
    real = Writer.write

    async def write(self: Writer, event: Any) -> None:
        if isinstance(event, Chunk) and event.offset + len(event.tokens) == 10 and not unread.is_set():
            unread.set()
            await take_it.wait()
        await real(self, event)

    store = GatedStore(lease=0.3)
    async with serving(tmp_path, store, session_lease=0.3) as (s, target, _):
        monkeypatch.setattr(Writer, "write", write)
        first = asyncio.create_task(s.generate(**SEEDED, max_tokens=10))
        await unread.wait()
        session = target.requests[0][0]
        second = await s.generate(session_id=session, token_ids=[2], seed=4, max_tokens=200)
        assert len(second.ids) == 200
        await until(lambda: not any(task.get_name() == "keep" for task in asyncio.all_tasks()))
        take_it.set()
        assert (await first).ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 10)
