"""Cancelled streams, dead addresses and long streams leave nothing behind, with our interceptors around them."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from specdec.edge.channel import open_channel
from tests.edge.echo import SERVICE, echo_server

MOST = 6 << 20  # bytes that the second half may take beyond what the first left: caches and the allocator breathe


def memory() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def settled(baseline: int) -> None:
    """Returns once no more tasks run than before; gRPC ends its own a few turns later."""
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > baseline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def forever(context: Any) -> None:
    await asyncio.Event().wait()


async def at_once(context: Any) -> None:
    return


async def cancelled_streams(count: int) -> None:
    channel: Any
    async with echo_server(forever) as (_, channel):
        for _ in range(count):
            call = channel.unary_stream(f"/{SERVICE}/server_stream")(b"x")
            await call.read()
            call.cancel()


async def dead_addresses(count: int) -> None:
    for _ in range(count):
        channel: Any
        async with open_channel("127.0.0.1:1") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{SERVICE}/unary")(b"x", timeout=5.0)


async def long_stream(count: int) -> None:
    async def messages() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 100

    channel: Any
    async with echo_server(at_once) as (_, channel):
        replies = 0
        async for _ in channel.stream_stream(f"/{SERVICE}/bidi")(messages()):
            replies += 1
    assert replies == count


@pytest.mark.scenario("B92")
@pytest.mark.parametrize(("work", "count"), [(cancelled_streams, 600), (dead_addresses, 150), (long_stream, 8000)])
async def test_what_is_over_is_gone(work: Callable[[int], Awaitable[None]], count: int) -> None:
    """B92: memory, tasks and sockets after the second half are what they were after the first."""
    await work(count)
    tasks = len(asyncio.all_tasks())
    await settled(tasks)
    held, files = memory(), descriptors()
    await work(count)
    await settled(tasks)
    assert memory() - held < MOST
    assert descriptors() <= files + 2
