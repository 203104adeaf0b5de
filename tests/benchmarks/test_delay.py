from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.delay import DelayProxy, delayed


@asynccontextmanager
async def line() -> AsyncIterator[tuple[DelayProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection through a proxy to a server that echoes."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, delayed(server.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            yield proxy, reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


async def round_trip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> float:
    clock = asyncio.get_running_loop().time
    begun = clock()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data, "bytes keep their order"
    return clock() - begun


@pytest.mark.parametrize("trip", [0.0, 0.2])
async def test_a_round_trip_takes_at_least_its_time_and_may_change(trip: float) -> None:
    async with line() as (proxy, reader, writer):
        for now in (trip, 0.1 - trip / 2):
            proxy.round_trip = now
            assert await round_trip(reader, writer, b"hello") >= now


async def test_a_long_message_is_late_but_whole() -> None:
    async with line() as (proxy, reader, writer):
        proxy.round_trip = 0.02
        await round_trip(reader, writer, bytes(range(256)) * 4096)


async def test_a_server_that_is_away_ends_the_connection() -> None:
    async with delayed(1) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
