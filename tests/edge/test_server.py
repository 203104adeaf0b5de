import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specdec.core.errors import ConfigError
from specdec.edge.channel import MAX_MESSAGE_BYTES, channel_options, open_channel
from specdec.edge.server import LIVE, GrpcServer, run_until_signal, server_options
from tests.edge.echo import SERVICE, call, echo_server, register, start
from tests.edge.eventually import eventually

Status = health_pb2.HealthCheckResponse
Process = asyncio.subprocess.Process
ROOT = Path(__file__).parents[2]


async def nothing(_: Any) -> None:
    return


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
    return int(reply.status)


async def test_health_answers_for_the_process_and_each_service_and_starts_as_not_serving() -> None:
    async with (
        GrpcServer({SERVICE: register(nothing)}, port=0, host="127.0.0.1") as server,
        open_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        assert [await health(channel, name) for name in ("", SERVICE, LIVE)] == [Status.NOT_SERVING] * 3
        await server.set_serving(True)
        assert [await health(channel, name) for name in ("", SERVICE)] == [Status.SERVING] * 2
        await server.set_serving(False)
        assert [await health(channel, name) for name in ("", SERVICE)] == [Status.NOT_SERVING] * 2
        assert await health(channel, LIVE) == Status.SERVING, "to take no calls is no reason for a restart"
        await server.set_serving(False, live=False)
        assert await health(channel, LIVE) == Status.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health(channel, "no.such.Service")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.scenario("B103")
async def test_health_and_other_calls_answer_while_fifty_calls_hang() -> None:
    """Health waits in no queue behind the work."""
    release = asyncio.Event()

    async def hang(_: Any) -> None:
        await release.wait()

    async with echo_server(hang) as (server, channel):
        calls = [asyncio.create_task(call(channel, "unary", b"x")) for _ in range(50)]
        await eventually(lambda: server.active_calls == 50)
        assert await health(channel) == Status.SERVING
        calls[0].cancel()
        await eventually(lambda: server.active_calls == 49)
        waiting = asyncio.create_task(server.idle())
        await health(channel)
        assert not waiting.done()
        release.set()
        assert await asyncio.gather(*calls[1:]) == [[b"x"]] * 49
        await waiting
        assert server.active_calls == 0


async def test_reflection_lists_the_services() -> None:
    async with echo_server(nothing) as (_, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        begun = stub.ServerReflectionInfo(timeout=30)
        await begun.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        reply = await begun.read()
        await begun.done_writing()
        listed = {service.name for service in reply.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= listed


async def test_a_port_in_use_is_a_configuration_error() -> None:
    async with echo_server(nothing) as (server, _):
        with pytest.raises(ConfigError, match="port"):
            async with GrpcServer({}, port=server.port, host="127.0.0.1"):
                raise AssertionError("bound twice")


@pytest.mark.scenario("B101")
async def test_a_message_above_grpcs_own_4_mib_passes_and_one_above_ours_is_refused() -> None:
    """Both ends carry the limit."""
    async with echo_server(nothing) as (_, channel):
        large = bytes(5 * 2**20)
        assert await call(channel, "unary", large) == [large]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(channel, "unary", bytes(MAX_MESSAGE_BYTES + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.scenario("B100")
def test_the_server_allows_pings_as_often_as_clients_and_servers_send_them() -> None:
    """Otherwise a long prefill ends every stream of the channel (GOAWAY too_many_pings)."""
    client, server = dict(channel_options()), dict(server_options(MAX_MESSAGE_BYTES, None))
    allowed = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert allowed < client["grpc.keepalive_time_ms"]
    assert 20_000 <= client["grpc.keepalive_time_ms"] <= 30_000
    assert client["grpc.http2.max_pings_without_data"] == 0
    assert client["grpc.keepalive_permit_without_calls"] == server["grpc.keepalive_permit_without_calls"] == 1
    grpcs_own_default = 300_000
    assert not grpcs_own_default < client["grpc.keepalive_time_ms"], "the server must set it"


def test_connections_age_only_where_it_is_asked_for() -> None:
    assert "grpc.max_connection_age_ms" not in dict(server_options(1, None))
    assert dict(server_options(1, 30.0))["grpc.max_connection_age_ms"] == 30_000


@asynccontextmanager
async def process(grace: float) -> AsyncIterator[tuple[Process, grpc.aio.Channel]]:
    command = (sys.executable, "-m", "tests.edge.drain_server", str(grace))
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    try:
        port = int(await child.stdout.readline())
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield child, channel
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def rest(child: Process) -> list[str]:
    """What else it prints; ends when the process does."""
    output, _ = await child.communicate()
    return output.decode().split("\n")[:-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_on_a_signal_calls_in_progress_finish_and_the_process_leaves_by_itself(number: int) -> None:
    async with process(grace=60) as (child, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (await watch.read()).status == Status.SERVING
        stream: Any = channel.stream_stream(f"/{SERVICE}/bidi")(timeout=60)
        await stream.write(b"before")
        assert await stream.read() == b"before"
        child.send_signal(number)
        assert (await watch.read()).status == Status.NOT_SERVING
        assert child.stdout is not None
        assert await child.stdout.readline() == b"draining 1\n"
        for n in range(20):
            await stream.write(b"%d" % n)
            assert await stream.read() == b"%d" % n
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await rest(child) == ["stopped 0"]
        assert child.returncode == 0
        watch.cancel()


@pytest.mark.parametrize(("grace", "signals"), [(0.2, 1), (60.0, 2)])
async def test_a_call_that_never_ends_is_cut_after_the_grace_or_by_a_second_signal(grace: float, signals: int) -> None:
    async with process(grace) as (child, channel):
        stream: Any = channel.stream_stream(f"/{SERVICE}/bidi")(timeout=60)
        await stream.write(b"x")
        assert await stream.read() == b"x"
        assert child.stdout is not None
        child.send_signal(signal.SIGTERM)
        assert await child.stdout.readline() == b"draining 1\n"
        for _ in range(signals - 1):
            child.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await stream.read()
        assert cut.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert await rest(child) == ["stopped 0"]
        assert child.returncode == 0


async def test_a_drain_that_fails_does_not_keep_the_server_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def drain() -> None:
        raise LookupError("no store")

    async with echo_server(nothing) as (server, channel):
        running = asyncio.create_task(run_until_signal(server, drain, grace=60))
        await eventually(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        await running
        with pytest.raises(grpc.aio.AioRpcError):
            await call(channel, "unary", b"x")
    assert any(record.exc_info for record in caplog.records)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_stopping_cancels_calls_in_progress_and_waits_for_their_cleanup() -> None:
    cleaned = []

    async def hang(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _turn in range(10):
                await asyncio.sleep(0)
            cleaned.append(True)

    async with echo_server(hang) as (server, channel):
        begun = start(channel, "server_stream", b"x")
        assert await begun.read() == b"x"
        await server.stop()
        assert cleaned == [True]
        assert server.active_calls == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await begun.read()
