"""A restart is asked for by what a restart mends, and by nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from specdec.edge.server import LIVE, GrpcServer
from specdec.lm.loading import LoadedModel
from target_service.config import TargetConfig
from tests.target_service.conftest import MakeEngine
from tests.target_service.test_service import Gate, refused
from tests.target_service.wire import health, prompt, serving, until, until_health, verified

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.scenario("B139")
async def test_a_full_queue_is_live_and_ready(
    models: dict[str, LoadedModel], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B139: who comes too late is told so; the load in each reply sends new sessions elsewhere."""
    engine = make_engine()
    gate = Gate(engine, monkeypatch)
    config = TargetConfig(model="unused", queue_limit=2)
    async with serving(models["llama"], engine, config=config) as served:
        await until_health(served.port, SERVING, LIVE)
        clients = [served.client(str(i)) for i in range(4)]
        for client in clients:
            verified(await client.ask(0, prompt(5), open=client.opening()))
        gate.open.clear()
        await clients[0].send(clients[0].request(5, [1]))
        await until(lambda: served.batcher.running == 1)
        for client in clients[1:3]:
            await client.send(client.request(5, [1]))
        await until(lambda: served.batcher.queued == 2)
        assert refused(await clients[3].ask(5, [1])).reason == "OVERLOADED"
        assert [await health(served.port, name) for name in (LIVE, "specdec.v1.TargetService")] == [SERVING] * 2
        gate.open.set()


@pytest.mark.scenario("B139")
async def test_a_dead_compute_loop_is_not_live(
    models: dict[str, LoadedModel], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B139: a forward that never ends: neither ready nor live, though the process answers."""
    engine = make_engine()
    gate = Gate(engine, monkeypatch)
    async with serving(models["llama"], engine, stuck_after=0.3) as served:
        await until_health(served.port, SERVING, LIVE)
        gate.open.clear()
        client = served.client()
        await client.send(client.request(0, prompt(5), open=client.opening()))
        await until_health(served.port, NOT_SERVING, LIVE)
        assert await health(served.port) == NOT_SERVING
        gate.open.set()


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """What a probe runs into, let go at the end."""
    import threading

    event = threading.Event()
    yield event
    event.set()


@pytest.mark.scenario("B139")
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_model_that_stays_broken_is_not_live(
    models: dict[str, LoadedModel],
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    hung: threading.Event,
    hangs: bool,
) -> None:
    """B139: a device that a process has lost comes back to the next one: at first it only is not ready, as it may yet
    recover; in the end a restart is due, also where the forward that looks never returns."""
    engine, told = make_engine(), list[tuple[bool, bool]]()
    failures, tell = 0, GrpcServer.set_serving

    async def telling(server: GrpcServer, serving: bool, *, live: bool = True) -> None:
        told.append((serving, live))
        await tell(server, serving, live=live)

    def broken(segments: Any, layers: Any = ()) -> Any:
        nonlocal failures
        failures += 1
        if hangs and failures > 3:
            assert hung.wait(60), "the test lets it go on"
        raise RuntimeError("the device fell off")

    monkeypatch.setattr(GrpcServer, "set_serving", telling)
    monkeypatch.setattr(engine._runner, "compute", broken)
    async with serving(models["llama"], engine, stuck_after=1.0) as served:
        await until_health(served.port, SERVING, LIVE)
        client = served.client()
        for _ in range(3):
            await client.ask(0, prompt(5), open=client.opening())
        await until_health(served.port, NOT_SERVING, LIVE)
        hung.set()
    steps = [step for step, _ in groupby(told)]
    assert steps[:4] == [(False, False), (True, True), (False, True), (False, False)]


@pytest.mark.scenario("B139")
async def test_a_model_that_loads_holds_both(models: dict[str, LoadedModel], make_engine: MakeEngine) -> None:
    """B139: before the model is there the server answers that it neither lives nor serves, so a startup probe waits."""
    async with serving(models["llama"], make_engine(), ready=False) as served:
        assert [await health(served.port, name) for name in (LIVE, "specdec.v1.TargetService")] == [NOT_SERVING] * 2


async def test_whoever_drains_lives(models: dict[str, LoadedModel], make_engine: MakeEngine) -> None:
    async with serving(models["llama"], make_engine()) as served:
        client = served.client()
        verified(await client.ask(0, prompt(5), open=client.opening()))
        await served.service.drain()
        await until_health(served.port, NOT_SERVING)
        assert await health(served.port, LIVE) == SERVING
