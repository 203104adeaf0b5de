"""A TCP proxy on loopback: TLS for a server that has none, lost replies, cut and slow connections, a name that
moves."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Proxy:
    """behind: the port that new connections go to. lose: how many of the next replies to swallow, each together with
    its connection. delay: seconds that every piece of data waits."""

    behind: int
    port: int = 0
    lose: int = 0
    delay: float = 0.0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        """Every connection, at once and without a goodbye."""
        for writer in self.writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self.behind)
        except OSError:
            writer.close()  # as if nobody listened here either
            return
        self.writers |= {writer, behind_writer}
        await asyncio.gather(self._copy(reader, behind_writer), self._copy(behind_reader, writer, replies=True))
        for each in (writer, behind_writer):
            with suppress(OSError):
                await each.wait_closed()
        self.writers -= {writer, behind_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool = False) -> None:
        try:
            while data := await reader.read(65536):
                if replies and self.lose:
                    self.lose -= 1
                    break
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # either side hung up: so does the other
        writer.close()


@asynccontextmanager
async def proxied(port: int, certificate: Path | None = None) -> AsyncIterator[Proxy]:
    """A proxy in front of `port`, with TLS where a certificate (PEM with its key) is given."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if certificate else None
    if context and certificate:
        context.load_cert_chain(certificate)
    proxy, running = Proxy(port), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        await proxy.serve(reader, writer)
        running.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        if running:
            await asyncio.wait(running, timeout=2.0)  # the clients have closed: let their goodbyes arrive
        for writer in proxy.writers:
            writer.close()
        await asyncio.gather(*running)
        await server.wait_closed()
