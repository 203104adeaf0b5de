"""Messages that do not parse are their sender's mistake, not ours: a typed status in place of an unexplained one."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from specdec.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class _Unreadable:
    size: int


class Parsing(grpc.aio.ServerInterceptor):
    """The innermost interceptor: what it raises, the error boundary around it turns into a status."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        ways = ("unary", "stream")
        kind = f"{ways[handler.request_streaming]}_{ways[handler.response_streaming]}"
        checked = _checked(getattr(handler, kind), _each_readable if handler.request_streaming else _readable)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(checked, _tolerant(handler.request_deserializer), handler.response_serializer)


def _tolerant(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _Unreadable(len(data))

    return parsed


def _checked(inner: Callable[..., Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """A generator stays a generator and a coroutine a coroutine: so grpc.aio tells the two styles apart."""
    if inspect.isasyncgenfunction(inner):

        async def generator(request: Any, context: Any) -> AsyncIterator[Any]:
            async for response in inner(check(request), context):
                yield response

        return generator

    async def coroutine(request: Any, context: Any) -> Any:
        return await inner(check(request), context)

    return coroutine


def _readable(request: Any) -> Any:
    if isinstance(request, _Unreadable):
        raise InvalidArgument("request", f"{request.size} bytes", "does not parse: send this method's message")
    return request


async def _each_readable(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _readable(request)
