"""Busy is not dead: probes are answered in time by processes that are up to their necks in work."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from protos import target_pb2_grpc
from specdec.edge.channel import open_channel
from specdec.edge.client import Client
from specdec.edge.cluster import free_ports
from specdec.edge.server import LIVE, GrpcServer
from tests.end_to_end.slow_verifier import BURNED, burn
from tests.fakes.scripted import Request
from tests.fakes.stack import scripted_target, serve_replica
from tests.fakes.tables import MARKOV_5, letters_folder
from tests.metrics import page, total
from tests.target_service.wire import Client as Asking
from tests.target_service.wire import until_health, verified
from tests.tiny_models import make_tiny_model

STREAMS, SECONDS = 200, 5
VOCAB, PROMPT = 32, [i * 7 % 32 for i in range(400)]
TIMEOUT = 1.0  # seconds that a probe may take on a machine that has time


@asynccontextmanager
async def process(module: str, port: int, metrics_port: int, **settings: object) -> AsyncIterator[str]:
    """Serves inside; gives the URL of its metrics. Nothing is waited for at its end: what it computes may take long."""
    given = {"port": port, "metrics_port": metrics_port, "threads": 1, **settings}
    if module == "coordinator":
        del given["threads"]
    flags = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *flags, env=environment)
    try:
        yield f"http://127.0.0.1:{metrics_port}/metrics"
    finally:
        child.kill()
        await child.wait()


@dataclass(frozen=True, slots=True)
class Probe:
    """usual: seconds that an idle server took for the same at the same time."""

    status: str
    seconds: float
    usual: float

    @property
    def in_time(self) -> bool:
        return self.status == "SERVING" and self.seconds < TIMEOUT + 4 * self.usual


async def probed(port: int, load: Awaitable[object]) -> list[Probe]:
    """The liveness probes while the load lasts."""
    command = ("-m", "tests.end_to_end.prober", f"127.0.0.1:{port}")
    prober = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert prober.stdout is not None
    await prober.stdout.readline()
    await load
    prober.terminate()
    rest, _ = await prober.communicate()
    lines = [line.split() for line in rest.decode().splitlines()]
    return [Probe(status, float(seconds), float(usual)) for status, seconds, usual in lines]


def assert_in_time(probes: list[Probe]) -> None:
    assert len(probes) >= 3, "about two each second"
    assert [probe for probe in probes if not probe.in_time] == []


@pytest.mark.scenario("B137")
@pytest.mark.timeout(240)
async def test_a_verifier_that_computes_a_long_prompt_tells_in_time_that_it_lives(tmp_path: Path) -> None:
    """B137: forwards take longer than a probe may: whoever computed on the event loop would miss it."""
    folder = make_tiny_model(tmp_path / "model", "llama", VOCAB)
    port, metrics_port = free_ports(2)
    async with process("tests.end_to_end.slow_verifier", port, metrics_port, model=folder, tune_seconds=0) as metrics:
        async with asyncio.timeout(120):
            await comes_up(port)
        async with open_channel(f"127.0.0.1:{port}") as channel:
            client = Asking(target_pb2_grpc.TargetServiceStub(channel), "s", VOCAB)

            async def prefill() -> None:
                verified(await client.ask(0, PROMPT, open=client.opening()))
                verified(await client.ask(0, PROMPT[::-1]))

            assert_in_time(await probed(port, prefill()))
        text = await asyncio.to_thread(page, metrics)
    assert total(text, "specdec_compute_seconds_sum") > 2 * BURNED, "it was busy all along"


async def comes_up(port: int) -> None:
    """Returns once it says that it lives."""
    while True:
        try:
            return await until_health(port, health_pb2.HealthCheckResponse.SERVING, LIVE)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.1)


@pytest.mark.scenario("B137")
@pytest.mark.timeout(240)
async def test_a_coordinator_that_holds_200_streams_tells_in_time_that_it_lives(tmp_path: Path) -> None:
    """B137: liveness does not depend on how much there is to do."""
    folder = letters_folder(tmp_path / "model", 5)
    port, metrics_port = free_ports(2)

    async def unhurried(request: Request, reply: Any) -> Any:
        """A token a second: it is streams that are held here, and not cycles that are counted."""
        await asyncio.sleep(1.0)
        return reply

    target = scripted_target(MARKOV_5, folder, script=unhurried)
    async with serve_replica(target) as replica:
        settings = {"model": folder, "target_addresses": f"127.0.0.1:{replica.port}"}
        async with process("coordinator", port, metrics_port, **settings) as metrics:
            async with asyncio.timeout(60):
                await comes_up(port)
            async with Client(f"127.0.0.1:{port}") as client:

                async def stream(seed: int) -> None:
                    async for _ in client.generate(token_ids=[1], max_tokens=3000, num_draft_tokens=0, seed=seed):
                        pass

                streams = [asyncio.create_task(stream(seed)) for seed in range(STREAMS)]
                async with asyncio.timeout(60):
                    while await active(metrics) < STREAMS:  # noqa: ASYNC110  another process' state has no event
                        await asyncio.sleep(0.1)
                assert_in_time(await probed(port, asyncio.sleep(SECONDS)))
                assert await active(metrics) == STREAMS
                for each in streams:
                    each.cancel()
                await asyncio.gather(*streams, return_exceptions=True)


async def active(metrics: str) -> float:
    return total(await asyncio.to_thread(page, metrics), "specdec_active_streams")


async def test_a_server_that_computes_on_its_event_loop_would_be_seen() -> None:
    async with GrpcServer({}, host="127.0.0.1", port=0) as server:
        await server.set_serving(True)

        async def on_the_loop() -> None:
            for _ in range(2):
                burn(BURNED)
                await asyncio.sleep(0.1)

        probes = await probed(server.port, on_the_loop())
    assert [probe for probe in probes if not probe.in_time]
