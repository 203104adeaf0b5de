"""What stands around every handler of a server."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from specdec.core.errors import InvalidArgument
from specdec.edge.errors import Context

Handler = Any  # grpc.RpcMethodHandler: its attributes are not typed
Guard = Callable[[Context, str], AbstractAsyncContextManager[None]]
Parse = Callable[[bytes], Any]

_WAYS = ("unary", "stream")


class Around(grpc.aio.ServerInterceptor):
    """Runs every handler inside a guard, once per call and not per message. Unlike the contrib interceptor it
    keeps a coroutine a coroutine and a generator a generator, which is how grpc.aio tells the two styles
    apart."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = f"{_WAYS[handler.request_streaming]}_{_WAYS[handler.response_streaming]}"
        inner, method = getattr(handler, kind), handler_call_details.method
        around = self._generator if inspect.isasyncgenfunction(inner) else self._coroutine
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(around(inner, method), self._parsing(handler.request_deserializer), handler.response_serializer)

    def _parsing(self, parse: Parse | None) -> Parse | None:
        return parse

    def _request(self, request: Any) -> Any:
        """What the handler gets, a message or an iterator of them."""
        return request

    def _coroutine(self, inner: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Any]:
        async def handle(request: Any, context: Context) -> Any:
            async with self._guard(context, method):
                return await inner(self._request(request), context)

        return handle

    def _generator(self, inner: Callable[..., AsyncIterator[Any]], method: str) -> Callable[..., Any]:
        async def handle(request: Any, context: Context) -> AsyncIterator[Any]:
            async with self._guard(context, method):
                async for response in inner(self._request(request), context):
                    yield response

        return handle


@dataclass(frozen=True, slots=True)
class _Unreadable:
    size: int


class Parsing(Around):
    """A message that does not parse is its sender's mistake, not ours: a typed status in place of an unexplained one.
    The innermost: what it raises, the error boundary around it turns into a status."""

    def __init__(self) -> None:
        super().__init__(lambda context, method: nullcontext())

    def _parsing(self, parse: Parse | None) -> Parse | None:
        if parse is None:
            return None

        def tolerant(data: bytes) -> Any:
            try:
                return parse(data)
            except DecodeError:
                return _Unreadable(len(data))

        return tolerant

    def _request(self, request: Any) -> Any:
        return self._each(request) if hasattr(request, "__aiter__") else _readable(request)

    async def _each(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield _readable(request)


def _readable(request: Any) -> Any:
    if isinstance(request, _Unreadable):
        raise InvalidArgument("request", f"{request.size} bytes", "does not parse: send this method's message")
    return request
