"""One session's stream to one replica: a message per cycle, replies matched by cycle, context by the context rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc

from coordinator.context import Context
from coordinator.replica import Replica
from specdec.core.errors import ReplicaFault, ResourceExhausted
from specdec.edge.codec import decode_load, decode_stale

Request = TypeVar("Request")  # DraftRequest or VerifyRequest
Reply = TypeVar("Reply")


OVERLOADED = ResourceExhausted.reason  # a replica that says so is sound, only full


class ReplicaLost(ReplicaFault):
    """The stream ended under us: the process is gone, or said why."""

    reason = "REPLICA_LOST"


class ReplicaLate(ReplicaFault):
    """No reply within the budget."""

    reason = "REPLICA_LATE"


@dataclass(frozen=True, slots=True)
class Exchange(Generic[Request, Reply]):
    """How one kind of message travels. build(offset, first): the request that makes tokens[offset:] known, with the
    opening if it is the stream's first."""

    build: Callable[[int, bool], Request]
    encode: Callable[[Request], Any]
    decode: Callable[[Any, Request], Reply]


class CycleStream:
    """Owns the call, a task that reads it and a task that writes it. lost: why the stream serves no more, None while it
    does; opened: whether a message went out. _held: context tokens that the replica holds once it has read all we
    sent."""

    def __init__(self, replica: Replica, call: Any, tasks: asyncio.TaskGroup) -> None:
        self.replica = replica
        self.lost: ReplicaLost | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self._held = 0
        self.opened = False
        self._call = call
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        replica.inflight += 1
        tasks.create_task(self._read(), name=f"read-{replica.address}")
        self._writer: asyncio.Task[None] | None = tasks.create_task(self._write(), name=f"write-{replica.address}")

    def close(self) -> None:
        """Frees the replica's side at once: a cancelled stream is how it learns that the session left."""
        self.lost = self.lost or ReplicaLost(f"{self.replica.address}: closed")
        self.replica.inflight -= 1
        writer, self._writer = self._writer, None  # it keeps its cancellation, and that the stream
        assert writer is not None, "a stream is closed once"
        writer.cancel()
        self._call.cancel()

    async def ask(self, exchange: Exchange[Request, Reply], context: Context, cycle: int, timeout: float) -> Reply:
        """The reply to one cycle's message; a replica that holds less of `context` than we thought is told the rest.

        Raises ReplicaLate after `timeout` seconds, ReplicaLost if the stream ends, ReplicaFault if the replica asks
        again for what it just got, or answers what cannot be decoded."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    offset = self._held
                    request = exchange.build(offset, not self.opened)
                    raw = await self._send(exchange.encode(request), cycle, len(context))
                    self.replica.load = decode_load(raw.load)
                    if raw.WhichOneof("result") != "stale":
                        return exchange.decode(raw, request)
                    self._held = decode_stale(raw.stale).held
                    if self._held >= offset:
                        raise ReplicaFault(
                            f"{self.replica.address} holds {self._held}, yet refuses what starts at {offset}"
                        )
        except TimeoutError:
            raise ReplicaLate(f"{self.replica.address}: no reply within {timeout:.3f} s") from None

    async def _send(self, message: Any, cycle: int, length: int) -> Any:
        if self.lost is not None:
            raise self.lost
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[cycle] = future
        self._outgoing.put_nowait(message)
        self.opened, self._held = True, length
        self.bytes_sent += message.ByteSize()
        try:
            return await future
        finally:
            del self._waiting[cycle]

    async def _write(self) -> None:
        """Apart from `ask`, because to time out a write is to cancel the call."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader tells why the call has ended
            while True:
                await self._call.write(await self._outgoing.get())

    async def _read(self) -> None:
        lost = ReplicaLost(f"{self.replica.address}: the call was cancelled")
        try:
            # Not `async for`: a call that is left would hold its own iterator, and that the call.
            while (reply := await self._call.read()) is not grpc.aio.EOF:
                self.bytes_received += reply.ByteSize()
                future = self._waiting.get(reply.cycle)
                if future is not None and not future.done():
                    future.set_result(reply)
            lost = ReplicaLost(f"{self.replica.address}: the stream ended")
        except grpc.aio.AioRpcError as error:
            lost = self._ended(error)
        finally:
            self.lost = self.lost or lost
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(lost)

    def _ended(self, error: grpc.aio.AioRpcError) -> ReplicaLost:
        """A replica that is full ends the stream too, but it is sound."""
        reason = OVERLOADED if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else None
        return ReplicaLost(f"{self.replica.address}: {error.code().name}: {error.details()}", reason=reason)
