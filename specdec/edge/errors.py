"""Typed errors across the wire: SpecdecError <-> google.rpc.Status, both ways, and the one boundary around
every handler of a server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from specdec.core.errors import (
    Aborted,
    DeadlineExceeded,
    DraftFault,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ReplicaFault,
    ResourceExhausted,
    SpecdecError,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "specdec"
# A status travels in HTTP/2 trailers, which clients bound at 8 KiB.
_MAX_TEXT = 1000

Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)

# The most specific class first.
_CODES: tuple[tuple[type[SpecdecError], grpc.StatusCode], ...] = (
    (InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION),
    (Aborted, grpc.StatusCode.ABORTED),
    (DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (SpecdecError, grpc.StatusCode.INTERNAL),
)


class _Shown(str):
    """A value as the server showed it: quoted already."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def status_code(error: SpecdecError) -> grpc.StatusCode:
    return next(code for kind, code in _CODES if isinstance(error, kind))


def to_status(error: SpecdecError) -> grpc.Status:
    """google.rpc.Status with ErrorInfo always, BadRequest for a caller's mistake, RetryInfo where a retry may
    help."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    details: list[Message] = [info]
    if isinstance(error, InvalidArgument):
        shown = {"field": error.field, "value": repr(error.value), "remedy": error.remedy}
        info.metadata.update({key: text[:_MAX_TEXT] for key, text in shown.items()})
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=info.metadata["field"], description=info.metadata["remedy"], reason=error.reason
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Unavailable):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after * 1000))
        details.append(retry)
    return _status(status_code(error), str(error), details)


def internal_status() -> grpc.Status:
    """For what nobody foresaw: tells the caller nothing but that it happened."""
    info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=DOMAIN)
    return _status(grpc.StatusCode.INTERNAL, "internal error; the server's log has the details", [info])


def _status(code: grpc.StatusCode, message: str, details: list[Message]) -> grpc.Status:
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    number, _ = code.value
    rich = status_pb2.Status(code=number, message=message[:_MAX_TEXT], details=packed)
    status: grpc.Status = rpc_status.to_status(rich)
    return status


def from_rpc_error(error: grpc.aio.AioRpcError) -> SpecdecError:
    """The error that the server raised, with its details; without details, the nearest kind for the status
    code. A server that breaks (INTERNAL, UNKNOWN, UNIMPLEMENTED, DATA_LOSS) is a ReplicaFault."""
    code, message = error.code(), error.details() or error.code().name
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in _details(error):
        detail.Unpack(info)
        detail.Unpack(retry)
    reason = info.reason or code.name
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        shown = info.metadata
        field, value = shown.get("field", ""), _Shown(shown.get("value", "?"))
        restored: SpecdecError = InvalidArgument(field or "request", value, shown.get("remedy", message))
        restored.reason = reason
        return restored
    kind = _KINDS.get(code, ReplicaFault)
    if issubclass(kind, Unavailable):
        seconds = retry.retry_delay.ToMilliseconds() / 1000 or 1.0
        return kind(message, reason=reason, retry_after=seconds)
    return (DraftFault if reason == DraftFault.reason else kind)(message, reason=reason)


_KINDS: Mapping[grpc.StatusCode, type[SpecdecError]] = {
    **{code: kind for kind, code in _CODES if kind is not SpecdecError},
    grpc.StatusCode.OUT_OF_RANGE: FailedPrecondition,
    grpc.StatusCode.PERMISSION_DENIED: FailedPrecondition,
    grpc.StatusCode.CANCELLED: Unavailable,
}


def _details(error: grpc.aio.AioRpcError) -> list[AnyMessage]:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                _log.warning("a status came with details that do not parse: %s", error.details())
    return []


@asynccontextmanager
async def error_boundary(context: Context, method: str) -> AsyncIterator[None]:
    """Ends the call with the status of whatever the handler raised. CancelledError passes through."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        await context.abort_with_status(_answer(error, method))


def _answer(error: Exception, method: str) -> grpc.Status:
    """A task group's ExceptionGroup counts as its first member, unless a bug is among them. gRPC's own errors are
    writes to a peer that has gone, heard of before the cancellation: nobody is left to read the status."""
    found = [leaf for leaf in leaves(error) if not isinstance(leaf, grpc.aio.BaseError)]
    bug = next((leaf for leaf in found if not isinstance(leaf, SpecdecError)), None)
    if bug is None and found:
        return to_status(found[0])
    if bug is not None:
        _log.error("%s failed", method, exc_info=error)
    return internal_status()


def leaves(error: BaseException) -> Iterator[Any]:
    """The errors that a group of them holds, or the one."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from leaves(member)
    else:
        yield error
