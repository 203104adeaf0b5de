"""Blocks reach the store once, or are dropped; nobody waits for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from specdec.lm.exchange import BlockKey
from target_service.kv_tier import write_behind
from target_service.kv_tier.block_format import BlockFrame, unpack
from target_service.kv_tier.write_behind import Parcel, WriteBehind, name_of
from tests.target_service.kv_tier.blocks import IDENTITY, SIZE, DictBlocks, content, keys

TTL = 100.0
FRAME = BlockFrame(IDENTITY, SIZE)


@dataclass
class Rig:
    store: DictBlocks
    writes: WriteBehind
    outcomes: Counter[str]
    now: float = 0.0
    reads: int = field(default=0)

    def offer(self, chain: list[BlockKey]) -> None:
        """What a tier does after a step."""
        for i in self.writes.lacking([key.digest for key in chain]):
            key = chain[i]
            buffer = self.writes.admit(key.digest, FRAME.size)
            if buffer is not None:
                self.reads += 1
                FRAME.content(buffer)[:] = content(i)
                self.writes.send(Parcel(key.digest, buffer, partial(FRAME.seal, buffer, key)))

    async def settled(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await self.writes.flushed()

    def expire(self, key: BlockKey) -> None:
        del self.store.values[name_of(key.digest)]


@asynccontextmanager
async def rig(
    store: DictBlocks | None = None, queue_blocks: int = 100, budget: int | None = None
) -> AsyncIterator[Rig]:
    store, outcomes = store or DictBlocks(), Counter[str]()
    made = Rig(store, None, outcomes)  # type: ignore[arg-type]
    made.writes = WriteBehind(
        queue_bytes=queue_blocks * FRAME.size,
        budget_bytes=budget,
        ttl=TTL,
        count=lambda outcome: outcomes.update([outcome]),
        clock=lambda: made.now,
    )
    task = asyncio.create_task(made.writes.run(store))
    await asyncio.sleep(0)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_is_offered_arrives_whole_and_is_not_offered_again() -> None:
    chain = keys(5)
    async with rig() as r:
        r.offer(chain[:3])
        await r.settled()
        r.offer(chain)
        await r.settled()
        for i, key in enumerate(chain):
            assert (unpack(IDENTITY, key, r.store.values[name_of(key.digest)]) == content(i)).all()
        assert (r.outcomes, r.reads, r.writes.waiting_bytes) == (Counter(stored=5), 5, 0)


async def test_nothing_is_read_that_the_queue_has_no_room_for_and_it_is_offered_again_later() -> None:
    """Back-pressure drops: a store that takes nothing costs no copy beyond the queue's length."""
    async with rig(DictBlocks(gate=asyncio.Event()), queue_blocks=4) as r:
        r.offer(keys(10))
        assert (r.reads, r.outcomes) == (4, Counter(dropped=6))
        assert r.writes.waiting_bytes == 4 * FRAME.size
        assert r.store.gate is not None
        r.store.gate.set()
        await r.settled()
        r.offer(keys(10)[:8])
        await r.settled()
        assert r.outcomes["stored"] == 8


async def test_a_block_that_another_verifier_has_stored_counts_as_known() -> None:
    store = DictBlocks({name_of(key.digest): b"theirs" for key in keys(2)})
    async with rig(store) as r:
        r.offer(keys(3))
        await r.settled()
        assert r.outcomes == Counter(known=2, stored=1)
        r.offer(keys(3))
        assert r.reads == 3


async def test_over_its_budget_nothing_is_stored_and_later_it_is() -> None:
    store = DictBlocks(used=1001)
    async with rig(store, budget=1000) as r:
        r.offer(keys(2))
        await r.settled()
        assert r.outcomes == Counter(over_budget=2) and not store.values
        store.used = 0
        r.now += write_behind.LOOK
        r.offer(keys(2))
        await r.settled()
        assert r.outcomes["stored"] == 2


async def test_what_was_written_since_the_last_look_counts_against_the_budget() -> None:
    async with rig(DictBlocks(used=0), budget=2 * FRAME.size) as r:
        r.offer(keys(6))
        await r.settled()
        assert r.outcomes["stored"] <= 3 and r.outcomes["over_budget"] >= 3


async def test_a_store_that_fails_is_left_alone_then_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async with rig(DictBlocks(broken=True)) as r:
        r.offer(keys(4))
        await r.settled()
        assert r.outcomes == Counter(failed=1, dropped=3)
        r.offer(keys(4))
        assert r.outcomes == Counter(failed=1, dropped=7) and r.reads == 4, "nothing is copied for a store that rests"
        r.store.broken = False
        r.now += write_behind.REST
        r.offer(keys(4))
        await r.settled()
        assert r.outcomes["stored"] == 4
        assert len(caplog.records) == 1, "one line, not one a block"


async def test_what_is_still_in_use_is_kept_alive_and_what_went_all_the_same_is_stored_again() -> None:
    chain = keys(4)
    async with rig() as r:
        r.offer(chain)
        await r.settled()
        r.now += 0.6 * TTL
        r.expire(chain[2])
        r.offer(chain)
        assert r.reads == 4, "still believed to be there"
        r.offer(keys(1, seed=9))  # the next block that is written takes the refreshes along
        await r.settled()
        assert r.store.refreshed == [name_of(key.digest) for key in chain]
        r.offer(chain)
        await r.settled()
        assert r.reads == 6 and name_of(chain[2].digest) in r.store.values


async def test_what_is_withdrawn_is_offered_again() -> None:
    [key] = keys(1)
    async with rig() as r:
        buffer = r.writes.admit(key.digest, FRAME.size)
        assert buffer is not None
        r.writes.withdraw(key.digest, buffer)
        assert r.writes.waiting_bytes == 0 and r.writes.lacking([key.digest]) == [0]


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "KNOWN", 3)
    async with rig() as r:
        r.offer(keys(5))
        await r.settled()
        assert r.writes.lacking([key.digest for key in keys(5)]) == [0, 1]
