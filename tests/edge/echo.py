"""A service with one method of every kind in both styles of grpc.aio; each does what the test's script says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from specdec.edge.channel import open_channel
from specdec.edge.server import GrpcServer

SERVICE = "specdec.test.Echo"
METHODS = {
    "unary": "unary_unary",
    "server_stream": "unary_stream",
    "server_stream_generator": "unary_stream",
    "client_stream": "stream_unary",
    "bidi": "stream_stream",
    "bidi_generator": "stream_stream",
}

Script = Callable[[Any], Awaitable[None]]


def register(script: Script) -> Callable[[grpc.aio.Server], None]:
    """Every method answers what it got, then runs `script(context)`."""

    async def unary(request: bytes, context: Any) -> bytes:
        await script(context)
        return request

    async def server_stream(request: bytes, context: Any) -> None:
        await context.write(request)
        await script(context)

    async def server_stream_generator(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        await script(context)

    async def client_stream(requests: AsyncIterator[bytes], context: Any) -> bytes:
        last = b"".join([request async for request in requests])
        await script(context)
        return last

    async def bidi(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)
        await script(context)

    async def bidi_generator(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
        await script(context)

    functions = (unary, server_stream, server_stream_generator, client_stream, bidi, bidi_generator)
    handlers = {f.__name__: getattr(grpc, f"{METHODS[f.__name__]}_rpc_method_handler")(f) for f in functions}

    def add(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    return add


@asynccontextmanager
async def echo_server(script: Script) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    services = {SERVICE: register(script)}
    async with (
        GrpcServer(services, port=0, host="127.0.0.1") as server,
        open_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        await server.set_serving(True)
        yield server, channel


def start(channel: grpc.aio.Channel, method: str, *requests: bytes) -> Any:
    """The call, begun."""
    kind = METHODS[method]
    multi: Any = getattr(channel, kind)(f"/{SERVICE}/{method}")
    if kind.startswith("unary"):
        return multi(requests[0], timeout=30)

    async def stream() -> AsyncIterator[bytes]:
        for request in requests:
            yield request

    return multi(stream(), timeout=30)


async def call(channel: grpc.aio.Channel, method: str, *requests: bytes) -> list[bytes]:
    """All that came back."""
    begun = start(channel, method, *requests)
    if METHODS[method].endswith("stream"):
        return [response async for response in begun]
    return [await begun]
