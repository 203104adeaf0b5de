import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from specdec.core.errors import (
    Aborted,
    ConfigError,
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
from specdec.edge.errors import from_rpc_error, status_code, to_status
from specdec.edge.interceptors import Around
from tests.edge.echo import METHODS, call, echo_server, start

Code = grpc.StatusCode
ERRORS: dict[str, tuple[SpecdecError, grpc.StatusCode]] = {
    "invalid": (InvalidArgument("top_p", 1.5, "must be from 0 to 1"), Code.INVALID_ARGUMENT),
    "config": (ConfigError("port", "x", "must be an integer"), Code.INVALID_ARGUMENT),
    "not found": (NotFound("session 's' is unknown"), Code.NOT_FOUND),
    "precondition": (FailedPrecondition("session 's' is running"), Code.FAILED_PRECONDITION),
    "aborted": (Aborted("a newer owner"), Code.ABORTED),
    "deadline": (DeadlineExceeded("too late"), Code.DEADLINE_EXCEEDED),
    "exhausted": (ResourceExhausted("queue is full", retry_after=0.25), Code.RESOURCE_EXHAUSTED),
    "unavailable": (Unavailable("store is down", reason="STORE", retry_after=2.5), Code.UNAVAILABLE),
    "replica": (ReplicaFault("NaN from 10.0.0.7: é"), Code.INTERNAL),
    "draft": (DraftFault("token outside its support"), Code.INTERNAL),
}


async def failed(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, method, b"x")
    return caught.value


def raising(error: Exception) -> Any:
    async def script(_: Any) -> None:
        raise error

    return script


@pytest.mark.parametrize("method", METHODS)
async def test_a_handler_that_succeeds_is_untouched(method: str) -> None:
    async def script(_: Any) -> None:
        return

    async with echo_server(script) as (_, channel):
        assert b"".join(await call(channel, method, b"x")) == b"x"


@pytest.mark.parametrize("name", ERRORS)
async def test_every_error_comes_out_of_the_client_as_it_went_into_the_server(name: str) -> None:
    error, code = ERRORS[name]
    async with echo_server(raising(error)) as (_, channel):
        for method in METHODS:
            caught = await failed(channel, method)
            assert caught.code() is code
            back = from_rpc_error(caught)
            # ConfigError is a caller's mistake like any other once it is on the wire.
            kind = InvalidArgument if isinstance(error, ConfigError) else type(error)
            assert type(back) is kind
            assert (str(back), back.reason) == (str(error), error.reason)
            if isinstance(error, Unavailable) and isinstance(back, Unavailable):
                assert back.retry_after == error.retry_after
            if isinstance(error, InvalidArgument) and isinstance(back, InvalidArgument):
                assert (back.field, back.remedy) == (error.field, error.remedy)


async def test_the_details_are_google_rpc_details() -> None:
    async with echo_server(raising(InvalidArgument("top_p", 1.5, "must be from 0 to 1"))) as (_, channel):
        status = rpc_status.from_call(await failed(channel, "unary"))
    assert status is not None
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert [detail.Unpack(info) or detail.Unpack(request) for detail in status.details] == [True, True]
    assert (info.domain, info.reason, info.metadata["value"]) == ("specdec", "INVALID_ARGUMENT", "1.5")
    assert [(v.field, v.description) for v in request.field_violations] == [("top_p", "must be from 0 to 1")]
    async with echo_server(raising(ResourceExhausted("full", retry_after=0.25))) as (_, channel):
        status = rpc_status.from_call(await failed(channel, "bidi"))
    assert status is not None
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.ToMilliseconds() == 250


@pytest.mark.parametrize("method", METHODS)
async def test_a_bug_is_internal_without_a_traceback_which_stands_in_the_servers_log(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with echo_server(raising(ZeroDivisionError("secret detail"))) as (_, channel):
        caught = await failed(channel, method)
    assert caught.code() is Code.INTERNAL
    everything = f"{caught.details()}{caught.trailing_metadata()}{caught.debug_error_string()}"
    assert "secret detail" not in everything
    assert "Traceback" not in everything
    assert isinstance(from_rpc_error(caught), ReplicaFault)
    (record,) = [r for r in caplog.records if r.name == "specdec.edge.errors"]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert method in record.getMessage()


async def test_a_task_groups_error_counts_as_its_member_unless_a_bug_is_among_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(_: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(raising(NotFound("s"))(None))

    async with echo_server(script) as (_, channel):
        assert isinstance(from_rpc_error(await failed(channel, "bidi")), NotFound)
    assert not caplog.records
    mixed = ExceptionGroup("both", [NotFound("s"), ExceptionGroup("inner", [KeyError("bug")])])
    async with echo_server(raising(mixed)) as (_, channel):
        assert (await failed(channel, "bidi")).code() is Code.INTERNAL
    assert caplog.records


@pytest.mark.scenario("B86")
@pytest.mark.parametrize("method", [m for m, kind in METHODS.items() if kind.endswith("stream")])
async def test_a_client_that_leaves_runs_the_handlers_cleanup_once(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """CancelledError passes the boundary: cleanup that itself awaits runs to its end, no task is left, no noise."""
    entered, cleaned, release = asyncio.Event(), [], asyncio.Event()

    async def script(_: Any) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
            cleaned.append(method)

    async with echo_server(script) as (server, channel):
        begun = start(channel, method, b"x")
        assert await begun.read() == b"x"
        await entered.wait()
        assert server.active_calls == 1
        begun.cancel()
        release.set()
        await server.idle()
        assert cleaned == [method]
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_aborting_by_hand_still_works(caplog: pytest.LogCaptureFixture) -> None:
    async def script(context: Any) -> None:
        await context.abort(Code.UNAUTHENTICATED, "who are you")

    async with echo_server(script) as (_, channel):
        caught = await failed(channel, "server_stream")
    assert (caught.code(), caught.details()) == (Code.UNAUTHENTICATED, "who are you")
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert isinstance(from_rpc_error(caught), Unauthenticated)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_guard_that_turns_coroutines_into_generators_breaks_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: the contrib interceptor's fault."""
    monkeypatch.setattr(Around, "_coroutine", Around._generator)

    async def script(_: Any) -> None:
        return

    async with echo_server(script) as (_, channel):
        assert (await failed(channel, "server_stream")).code() is Code.INTERNAL


def test_a_status_fits_the_trailers_whatever_the_caller_sent() -> None:
    status = to_status(InvalidArgument("stop", "x" * 10**6, "must be short"))
    assert len(status.trailing_metadata[0][1]) < 8192


def test_the_most_specific_code_wins() -> None:
    assert status_code(ResourceExhausted("m")) is Code.RESOURCE_EXHAUSTED
    assert status_code(SpecdecError("m")) is Code.INTERNAL


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.UNAVAILABLE, Unavailable),
        (Code.CANCELLED, Unavailable),
        (Code.RESOURCE_EXHAUSTED, ResourceExhausted),
        (Code.UNIMPLEMENTED, ReplicaFault),
        (Code.UNKNOWN, ReplicaFault),
        (Code.DATA_LOSS, ReplicaFault),
        (Code.INVALID_ARGUMENT, InvalidArgument),
        (Code.DEADLINE_EXCEEDED, DeadlineExceeded),
    ],
)
def test_a_status_without_details_becomes_the_nearest_error(code: Code, kind: type[SpecdecError]) -> None:
    bare = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="why")
    error = from_rpc_error(bare)
    assert type(error) is kind
    assert "why" in str(error)
    assert error.reason == code.name
    torn = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff"))
    assert type(from_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), torn, details="why"))) is kind
