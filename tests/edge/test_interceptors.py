"""Bytes that are no message end their call with a typed status, in every kind of method and both styles of handler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import common_pb2
from specdec.core.errors import InvalidArgument
from specdec.edge.channel import open_channel
from specdec.edge.errors import from_rpc_error
from specdec.edge.server import GrpcServer

GARBAGE = b"\xff\xff\xff\x00\x12"


async def unary_unary(request: Any, context: Any) -> Any:
    return request


async def unary_stream(request: Any, context: Any) -> AsyncIterator[Any]:
    yield request


async def stream_unary(requests: Any, context: Any) -> Any:
    return [request async for request in requests][-1]


async def stream_stream(requests: Any, context: Any) -> None:
    async for request in requests:
        await context.write(request)


METHODS = {method.__name__: method for method in (unary_unary, unary_stream, stream_unary, stream_stream)}


def register(server: grpc.aio.Server) -> None:
    parse, write = common_pb2.Load.FromString, common_pb2.Load.SerializeToString
    handlers = {name: getattr(grpc, f"{name}_rpc_method_handler")(f, parse, write) for name, f in METHODS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Parsing", handlers),))


async def answered(channel: grpc.aio.Channel, name: str, *messages: bytes) -> list[bytes]:
    call = getattr(channel, name)(f"/test.Parsing/{name}")

    async def each() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    running = call(each() if name.startswith("stream") else messages[0], timeout=10.0)
    return [reply async for reply in running] if name.endswith("stream") else [await running]


@pytest.mark.parametrize("name", METHODS)
async def test_what_does_not_parse_is_refused_and_what_does_is_served(name: str) -> None:
    sound = common_pb2.Load(queued=3).SerializeToString()
    async with (
        GrpcServer({"test.Parsing": register}, host="127.0.0.1", port=0) as server,
        open_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        for messages in ([GARBAGE], [sound, GARBAGE]):
            if len(messages) == 1 or name.startswith("stream"):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await answered(channel, name, *messages)
                error = from_rpc_error(failed.value)
                assert isinstance(error, InvalidArgument) and error.field == "request"
        assert await answered(channel, name, sound) == [sound]
