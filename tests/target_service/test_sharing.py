"""Two verifiers and one KV tier: what one computed the other does not compute, and no output changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from specdec.core.step_time import StepTimeTable
from specdec.core.tree import EMPTY_TREE
from specdec.edge.batcher import MicroBatcher
from specdec.edge.messages import OpenSession, VerifyRequest
from specdec.lm.network import BLOCK
from target_service.engine import Engine
from target_service.kv_tier.block_format import BlockFrame
from target_service.kv_tier.fetching import Fetching
from target_service.kv_tier.tier import KVTier
from target_service.kv_tier.write_behind import WriteBehind
from target_service.schedule import Schedule
from target_service.service import Batcher
from target_service.session import VerifyJob
from target_service.sharing import KVSharing
from target_service.step_time import StepTimes
from tests.target_service.conftest import MakeEngine
from tests.target_service.driver import GREEDY, Turn, generate, ids
from tests.target_service.kv_tier.blocks import DictBlocks
from tests.target_service.wire import prompt


@dataclass
class Verifier:
    engine: Engine
    tier: KVTier
    sharing: KVSharing
    batcher: Batcher
    found: list[int]


@asynccontextmanager
async def verifier(engine: Engine, store: DictBlocks, queue_bytes: int = 1 << 24) -> AsyncIterator[Verifier]:
    writes = WriteBehind(queue_bytes=queue_bytes, budget_bytes=None, ttl=100.0)
    frame = BlockFrame(engine.exchange.identity, engine.exchange.block_bytes)
    fetching = Fetching(engine.exchange.identity, engine.exchange.block_bytes, writes)
    found: list[int] = []
    async with KVTier(lambda: store, frame, writes, fetching) as tier:
        sharing = KVSharing(tier, engine.exchange, engine.schedule, found.append)
        batcher: Batcher
        async with MicroBatcher(engine.step, queue_limit=100) as batcher:
            yield Verifier(engine, tier, sharing, batcher, found)


async def served(v: Verifier, turn: Turn) -> Turn:
    """The turn to its end, as a stream of the service serves it: what is filled is shared behind each answer."""
    while not turn.done:
        job = await v.batcher.call(lambda: turn.next_job(v.engine))
        turn.take(job, await v.batcher.submit(job))
        await v.batcher.call(partial(v.sharing.keep, job.session))
    assert turn.session is not None
    await v.batcher.call(partial(v.engine.close, turn.session))
    return turn


def computed(turn: Turn) -> int:
    return turn.results[0].computed_tokens


async def test_a_session_that_comes_from_another_verifier_computes_only_its_last_block(
    make_engine: MakeEngine,
) -> None:
    store, context = DictBlocks(), prompt(4 * BLOCK + 9)
    wanted = generate(make_engine(), context, 8)
    async with verifier(make_engine(), store) as first, verifier(make_engine(), store) as second:
        one = await served(first, Turn(context, 8))
        assert await first.tier.flush(5.0) and len(store.values) == 4
        assert await second.sharing.bring(second.batcher, ids(context)) == 4 * BLOCK
        two = await served(second, Turn(context, 8))
    assert one.output == two.output == wanted
    assert (computed(one), computed(two)) == (len(context), 9)
    assert second.found == [4 * BLOCK]


async def test_blocks_fill_up_as_a_session_goes_on_and_each_is_stored_once(make_engine: MakeEngine) -> None:
    store = DictBlocks()
    async with verifier(make_engine(), store) as v:
        await asyncio.gather(*(served(v, Turn(prompt(20), 3 * BLOCK)) for _ in range(2)))
        assert await v.tier.flush(5.0)
        assert len(store.values) == 3 == len(store.puts)


async def test_where_computing_is_faster_nothing_is_fetched(make_engine: MakeEngine) -> None:
    store, context = DictBlocks(), prompt(4 * BLOCK + 9)
    async with verifier(make_engine(), store) as first:
        await served(first, Turn(context, 1))
        assert await first.tier.flush(5.0)
    rows = StepTimeTable.of([1, 1000], [0], [[1e-9], [2e-9]])
    fast = make_engine(schedule=Schedule(64, 17, StepTimes(rows)))
    slow = make_engine(schedule=Schedule(64, 17, StepTimes(StepTimeTable.of([1, 1000], [0], [[1.0], [2.0]]))))
    for engine, expected in ((fast, 0), (slow, 4 * BLOCK)):
        async with verifier(engine, store) as second:
            assert await second.sharing.bring(second.batcher, ids(context)) == expected
    assert len(store.trips) == 1


async def test_what_is_here_already_is_not_fetched(make_engine: MakeEngine) -> None:
    store, context = DictBlocks(), prompt(4 * BLOCK + 1)
    async with verifier(make_engine(), store) as v:
        await served(v, Turn(context, 1))
        assert await v.sharing.bring(v.batcher, ids(context)) == 0
        assert await v.sharing.bring(v.batcher, ids(prompt(BLOCK))) == 0, "no block before the root is full"
        assert store.trips == []


async def test_a_store_that_fails_costs_a_prefill_and_nothing_else(make_engine: MakeEngine) -> None:
    store, context = DictBlocks(broken=True), prompt(4 * BLOCK + 9)
    async with verifier(make_engine(), store) as v:
        assert await v.sharing.bring(v.batcher, ids(context)) == 0
        turn = await served(v, Turn(context, 8))
    assert turn.output == generate(make_engine(), context, 8)


async def test_a_drain_stores_what_was_dropped_before(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store failed a moment ago, so the write-behind dropped all; and the queue takes one block at a time."""
    monkeypatch.setattr("target_service.kv_tier.write_behind.REST", 0.3)
    store, context = DictBlocks(), prompt(4 * BLOCK + 9)
    engine = make_engine()
    async with verifier(engine, store, queue_bytes=engine.exchange.block_bytes + 1024) as v:
        turn = Turn(context, 8)
        job = await v.batcher.call(lambda: turn.next_job(v.engine))
        v.tier.writes.failed(ConnectionError("scripted"))
        await v.batcher.submit(job)
        await v.batcher.call(lambda: v.sharing.keep(job.session))
        assert await v.tier.flush(5.0) and not store.values
        await v.sharing.hand_over(v.batcher, lambda: v.engine.sessions)
        assert len(store.values) == 4


async def test_a_drain_gives_a_store_that_hangs_its_time_and_no_more(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("target_service.sharing.HAND_OVER", 0.1)
    monkeypatch.setattr("target_service.kv_tier.tier.CLOSING", 0.1)
    store = DictBlocks(gate=asyncio.Event())
    async with verifier(make_engine(), store) as v:
        turn = Turn(prompt(3 * BLOCK), 8)
        await v.batcher.submit(await v.batcher.call(lambda: turn.next_job(v.engine)))
        async with asyncio.timeout(5.0):
            await v.sharing.hand_over(v.batcher, lambda: v.engine.sessions)


async def test_what_a_session_withdrew_as_nan_is_never_stored(make_engine: MakeEngine) -> None:
    store = DictBlocks()
    async with verifier(make_engine(), store) as v:
        session = v.engine.open(OpenSession("s", GREEDY, 0, 1))
        session.sequence.discard()
        await v.batcher.call(lambda: v.sharing.keep(session))
        assert await v.tier.flush(5.0) and not store.values


async def test_sessions_of_another_salt_find_nothing_here_nor_in_the_store(make_engine: MakeEngine) -> None:
    store, context = DictBlocks(), prompt(3 * BLOCK + 9)

    def answered(v: Verifier, salt: bytes) -> int:
        """Tokens computed for a session of this salt."""
        session = v.engine.open(OpenSession("s", GREEDY, 0, 1, cache_salt=salt))
        job = VerifyJob(session, VerifyRequest(1, 0, ids(context), EMPTY_TREE))
        while not (finished := v.engine.step([job])):
            continue
        [(_, result)] = finished
        v.sharing.keep(session)
        v.engine.close(session)
        return result.computed_tokens

    async with verifier(make_engine(token_budget=200), store) as first, verifier(make_engine(), store) as second:
        assert await first.batcher.call(lambda: [answered(first, salt) for salt in (b"a", b"a", b"b")]) == [
            len(context),
            9,
            len(context),
        ]
        assert await first.tier.flush(5.0) and len(store.values) == 6
        for salt, tokens in ((b"a", 3 * BLOCK), (b"b", 3 * BLOCK), (b"c", 0), (b"", 0)):
            assert await second.sharing.bring(second.batcher, ids(context), salt) == tokens


@pytest.mark.scenario("B110")
async def test_forty_sessions_that_are_nearly_alike_never_meet_anothers_content(make_engine: MakeEngine) -> None:
    """B110: the pools hold a fraction of them, so that all goes through the store and comes back while others do."""
    store, contexts = DictBlocks(), [prompt(3 * BLOCK + 5) for _ in range(40)]
    for i, context in enumerate(contexts):
        context[5] = i  # one token early on: everything behind it differs, and none of the other ids do
    alone = make_engine(kv_tokens=40 * 5 * BLOCK)
    expected = [generate(alone, context, 6) for context in contexts]
    async with (
        verifier(make_engine(kv_tokens=512, max_sessions=64), store) as first,
        verifier(make_engine(kv_tokens=512, max_sessions=64), store) as second,
    ):
        for context in contexts:
            await served(first, Turn(context, 1))
        assert await first.tier.flush(10.0) and len(store.values) == 40 * 3

        async def resumed(number: int) -> list[int]:
            await second.sharing.bring(second.batcher, ids(contexts[number]))
            return (await served(second, Turn(contexts[number], 6, session_id=str(number)))).output

        outputs = await asyncio.gather(*(resumed(number) for number in range(40)))
    assert outputs == expected
    assert sum(second.found) >= 3 * BLOCK, "none of it came from the store"
