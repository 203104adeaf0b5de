"""A round trip that is longer than loopback's: a TCP proxy in this process that holds back every byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass
class DelayProxy:
    """behind: the port that connections go to. round_trip: seconds, half of it each way; may change at any time, and
    holds for what is read from then on. Bytes keep their order, and the link has all the bandwidth there is."""

    behind: int
    port: int = 0
    round_trip: float = 0.0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.behind)
        except OSError:
            writer.close()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        finally:
            self._writers -= both

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._send(line, writer))
        data = b"-"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            line.put_nowait((clock() + self.round_trip / 2, data))
        await sender

    async def _send(self, line: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await line.get()
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            if not data:
                break
            with suppress(OSError):
                writer.write(data)
                await writer.drain()
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def delayed(behind: int) -> AsyncIterator[DelayProxy]:
    """A proxy in front of a port of this machine, at `port` of 127.0.0.1."""
    proxy, running = DelayProxy(behind), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        running.add(task)
        try:
            await proxy.serve(reader, writer)
        finally:
            running.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.close()
        await asyncio.gather(*running)
        await server.wait_closed()
