"""A gRPC server in front of a replica that hands everything on, and now and then tells a lie."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np

from protos.draft_pb2 import DraftResponse
from protos.target_pb2 import VerifyResponse

Lie = Callable[[Any], None]  # changes a reply in place
REPLIES: dict[str, Any] = {
    "/specdec.v1.TargetService/Verify": VerifyResponse,
    "/specdec.v1.DraftService/Draft": DraftResponse,
}


@dataclass
class Deceit:
    """What all liars of a pool share. left: lies still to be told; told: so far."""

    lie: Lie | None = None
    left: int = 0
    told: int = 0

    def begin(self, lie: Lie) -> None:
        self.lie, self.left, self.told = lie, 1, 0

    def changed(self, method: str, reply: bytes) -> bytes:
        """Only what answers the cycle itself is lied about."""
        if self.lie is None or not self.left or method not in REPLIES:
            return reply
        message = REPLIES[method].FromString(reply)
        if message.WhichOneof("result") not in ("verification", "draft"):
            return reply
        self.lie(message)
        changed: bytes = message.SerializeToString()
        if changed != reply:
            self.left, self.told = self.left - 1, self.told + 1
        return changed


class _Passing(grpc.GenericRpcHandler):
    """Every method as a stream of bytes both ways, which on the wire a single message is too."""

    def __init__(self, channel: grpc.aio.Channel, deceit: Deceit) -> None:
        self._channel = channel
        self._deceit = deceit

    def service(self, details: Any) -> Any:
        method = details.method

        async def passed(requests: Any, context: Any) -> AsyncIterator[bytes]:
            metadata = [(key, value) for key, value in details.invocation_metadata if key != "user-agent"]
            call: Any = self._channel.stream_stream(method)(requests, metadata=metadata)
            try:
                while (reply := await call.read()) is not grpc.aio.EOF:
                    yield self._deceit.changed(method, reply)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(passed)


@asynccontextmanager
async def lying(port: int, deceit: Deceit) -> AsyncIterator[int]:
    """The port of a liar in front of `port`."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Passing(channel, deceit),))
        own = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield own
        finally:
            await server.stop(0)


def _impossible(reply: VerifyResponse) -> None:
    """NaN where there are laws, an id beyond the vocabulary where there are draws alone."""
    found = reply.verification
    if found.support_p:
        found.support_p = np.full(len(found.support_p) // 4, np.nan, dtype=np.float32).tobytes()
    else:
        found.drawn = np.full(len(found.drawn) // 4, 1 << 30, dtype=np.uint32).tobytes()


def _misshapen(reply: VerifyResponse) -> None:
    reply.verification.drawn += b"\0\0\0\0"


def _cut_short(reply: VerifyResponse) -> None:
    reply.verification.drawn = reply.verification.drawn[:-3]


def _of_another_cycle(reply: VerifyResponse | DraftResponse) -> None:
    reply.cycle -= 1


def _drawn_otherwise(reply: DraftResponse) -> None:
    """Each draft token becomes another one of those that its law has: the law goes out as it is."""
    draft = reply.draft
    support = np.frombuffer(draft.support_ids, dtype=np.uint32)
    if len(support):
        ids = np.frombuffer(draft.token_ids, dtype=np.uint32)
        order = {int(a): int(b) for a, b in zip(support, np.roll(support, 1), strict=True)}
        draft.token_ids = np.array([order[int(i)] for i in ids], dtype=np.uint32).tobytes()


def _without_weights(reply: DraftResponse) -> None:
    draft = reply.draft
    if draft.support_q:
        draft.support_q = np.full(len(draft.support_q) // 2, np.nan, dtype=np.float16).tobytes()
    else:
        draft.token_ids = np.full(len(draft.token_ids) // 4, 1 << 30, dtype=np.uint32).tobytes()


VERIFIER_LIES: dict[str, Lie] = {
    "impossible numbers": _impossible,
    "wrong shape": _misshapen,
    "short reply": _cut_short,
    "stale cycle": _of_another_cycle,
}
DRAFTER_LIES: dict[str, Lie] = {
    "draws of another law": _drawn_otherwise,
    "impossible numbers": _without_weights,
    "stale cycle": _of_another_cycle,
}
