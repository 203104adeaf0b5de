"""The block store on real servers: one, behind Sentinel, a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from specdec.core.errors import ConfigError
from target_service.kv_tier.block_store import BlockStore, block_store
from tests.redis_server import ClusterGroup, RedisProcess, SentinelGroup

TTL = 60.0
BLOCK = bytes(range(256)) * 4096  # a megabyte, as blocks are


@pytest.fixture(scope="module")
def single() -> Iterator[RedisProcess]:
    with RedisProcess() as server:
        yield server


@pytest.fixture(scope="module", params=["single", "sentinel", "cluster"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[RedisProcess]]]:
    """URL, and the servers that hold blocks."""
    if request.param == "single":
        with RedisProcess() as server:
            yield server.url, [server]
    elif request.param == "sentinel":
        with SentinelGroup() as group:
            yield group.url, [group.master]
    else:
        with ClusterGroup() as cluster:
            yield cluster.url, cluster.nodes


@asynccontextmanager
async def opened(url: str, timeout: float = 5.0) -> AsyncIterator[BlockStore]:
    store = block_store(url, ttl=TTL, timeout=timeout)()
    try:
        yield store
    finally:
        await store.close()


def names(count: int, prefix: str) -> list[str]:
    return [f"specdec:kv:{prefix}{i:032x}" for i in range(count)]


async def test_blocks_come_back_in_order_and_holes_are_seen(servers: tuple[str, list[RedisProcess]]) -> None:
    async with opened(servers[0]) as store:
        wanted = names(9, "a")
        for i, name in enumerate(wanted):
            if i != 4:
                assert await store.put(name, memoryview(bytes([i]) + BLOCK))
        found = await store.get(wanted)
        assert [value and value[0] for value in found] == [0, 1, 2, 3, None, 5, 6, 7, 8]
        assert all(value is None or value[1:] == BLOCK for value in found)
        await store.delete(wanted[0])
        assert await store.refresh(wanted[:2]) == [False, True]
        assert await store.used_bytes() > 8 * len(BLOCK)


async def test_every_key_has_a_time_to_live(servers: tuple[str, list[RedisProcess]]) -> None:
    url, processes = servers
    async with opened(url) as store:
        for name in names(3, "b"):
            await store.put(name, memoryview(b"value"))
        await store.get(names(3, "b"))
        await store.refresh(names(3, "b"))
    ttls = [server.admin.pttl(key) for server in processes for key in server.admin.scan_iter("specdec:kv:*")]
    assert ttls and all(0 < ttl <= 1000 * TTL for ttl in ttls)


async def test_ten_verifiers_store_the_same_block_once(servers: tuple[str, list[RedisProcess]]) -> None:
    """Single flight: whoever comes while another is storing leaves it alone, and what it reads meanwhile is a miss."""
    [name] = names(1, "c")
    stores = [block_store(servers[0], ttl=TTL, timeout=5.0)() for _ in range(10)]
    try:
        outcomes = await asyncio.gather(*(store.put(name, memoryview(BLOCK)) for store in stores))
        assert sorted(outcomes) == [False] * 9 + [True]
        assert await stores[0].get([name]) == [BLOCK]
    finally:
        for store in stores:
            await store.close()


async def test_a_claim_whose_owner_died_reads_as_a_miss_and_lapses(single: RedisProcess) -> None:
    [name] = names(1, "d")
    async with opened(single.url) as store:
        single.command("SET", name, "", "PX", 5000)
        assert await store.get([name]) == [None]
        assert not await store.put(name, memoryview(BLOCK))
        single.command("DEL", name)  # as its expiry would
        assert await store.put(name, memoryview(BLOCK))


@pytest.mark.scenario("B111")
async def test_a_server_that_does_not_answer_costs_one_timeout(single: RedisProcess) -> None:
    """B111: and a call that was given up leaves no reply behind for the next one."""
    first, second = names(2, "e")
    async with opened(single.url, timeout=0.2) as store:
        await store.put(first, memoryview(b"first"))
        await store.put(second, memoryview(b"second"))
        with single.paused():
            with pytest.raises(Exception, match=r"(?i)timeout"):
                await store.get([first])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await store.get([first])
        assert await store.get([second]) == [b"second"]


async def test_a_call_that_is_cancelled_in_the_middle_of_a_reply_spoils_no_other(single: RedisProcess) -> None:
    wanted = names(16, "f")
    refused: Callable[[list[bytes | None]], bool] = lambda found: [v and v[:1] for v in found] != [b"x"]  # noqa: E731
    async with opened(single.url) as store:
        for name in wanted:
            await store.put(name, memoryview(BLOCK))
        await store.put("specdec:kv:small", memoryview(b"x"))
        for turns in range(0, 60, 3):
            task = asyncio.create_task(store.get(wanted))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not refused(await store.get(["specdec:kv:small"]))


@pytest.mark.parametrize("url", ["memory://", "nonsense", "http://host:1", "redis://host:1/0?unknown=1"])
def test_a_url_that_names_no_block_store_is_refused_at_boot(url: str) -> None:
    with pytest.raises(ConfigError):
        block_store(url, ttl=TTL, timeout=1.0)
