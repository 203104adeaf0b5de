"""Two hundred megabytes move, and the loop that serves does not notice."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from target_service.kv_tier.block_format import BlockFrame
from target_service.kv_tier.block_store import block_store
from target_service.kv_tier.fetching import Fetching
from target_service.kv_tier.tier import KVTier
from target_service.kv_tier.write_behind import WriteBehind
from tests.redis_server import RedisProcess
from tests.target_service.kv_tier.blocks import IDENTITY, keys

BLOCKS, SIZE = 100, 1 << 20  # a hundred megabytes there, and as many back


@pytest.mark.scenario("B102")
async def test_moving_blocks_blocks_no_loop() -> None:
    """B102: neither packing, sending, receiving nor checking happens on the loop of the service. Bounded by the whole
    transfer, since a busy machine stops every loop for a while."""
    chain, content = keys(BLOCKS), np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8)
    longest, stop = 0.0, asyncio.Event()

    async def probe() -> None:
        nonlocal longest
        while not stop.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(0.01)
            longest = max(longest, time.perf_counter() - begun - 0.01)

    def read(digest: bytes, out: np.ndarray) -> bool:
        out[:] = content
        return True

    writes = WriteBehind(queue_bytes=1 << 30, budget_bytes=None, ttl=60.0)
    fetching = Fetching(IDENTITY, SIZE, writes)
    with RedisProcess() as redis:
        connect = block_store(redis.url, ttl=60.0, timeout=10.0)
        async with KVTier(connect, BlockFrame(IDENTITY, SIZE), writes, fetching) as tier:
            probing = asyncio.create_task(probe())
            begun = time.perf_counter()
            await asyncio.to_thread(tier.keep, [key.digest for key in chain], chain.__getitem__, read)
            assert await tier.flush(60.0)
            found = await tier.fetch(chain, 60.0)
            spent = time.perf_counter() - begun
            stop.set()
            await probing
    assert len(found) == BLOCKS and all((part == content).all() for part in found[:: BLOCKS // 4])
    assert longest < spent / 4, f"the loop stood still for {longest:.3f} of {spent:.3f} s"
