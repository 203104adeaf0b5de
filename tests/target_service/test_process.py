"""The replica as it is deployed: a process of its own, from its flags to its exit code."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from protos import common_pb2, target_pb2_grpc
from specdec.core.verification import Verification
from specdec.edge.channel import open_channel
from specdec.edge.cluster import free_ports
from specdec.edge.info_codec import decode_info
from tests.metrics import page, total
from tests.target_service.conftest import VOCAB, MakeEngine
from tests.target_service.driver import generate, plain
from tests.target_service.wire import Client, converse, health, prompt, until_health


async def start(*arguments: str) -> Process:
    command = [sys.executable, "-m", "target_service", *arguments]
    return await asyncio.create_subprocess_exec(*command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=PIPE)


async def line_with(child: Process, pattern: str) -> re.Match[str]:
    """The first line of its log that matches."""
    assert child.stderr is not None
    seen = []
    async with asyncio.timeout(100):
        async for line in child.stderr:
            seen.append(line.decode())
            if match := re.search(pattern, seen[-1]):
                return match
    raise AssertionError(f"it ended without {pattern!r}: {''.join(seen)}")


@pytest.mark.scenario("B124")
async def test_a_real_replica_verifies_by_its_flags_and_drains_on_sigterm(
    folders: dict[str, Path], make_engine: MakeEngine
) -> None:
    """Settings reach the engine: read back from the process, and seen in what it serves."""
    port, metrics_port = free_ports(2)
    flags = {"model": str(folders["qwen2"]), "threads": "1", "token_budget": "9", "max_nodes": "8"}
    flags |= {"tune_seconds": "0.0", "network": "stock"}
    flags |= {"kv_tokens": "128", "max_sessions": "2", "port": str(port), "metrics_port": str(metrics_port)}
    child = await start(*(part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)))
    try:
        async with open_channel(f"127.0.0.1:{flags['port']}") as channel:
            await line_with(child, "serving qwen2 on 127.0.0.1")
            await until_health(flags["port"], health_pb2.HealthCheckResponse.SERVING)
            stub = target_pb2_grpc.TargetServiceStub(channel)
            info = decode_info(await stub.Info(common_pb2.InfoRequest()))
            assert info.config.items() >= flags.items()
            assert (info.max_context, info.max_nodes, info.load.kv_total) == (120, 8, 128)

            client = Client(stub, "s", VOCAB)
            assert await converse(client, prompt(20), 6, plain) == generate(make_engine("qwen2"), prompt(20), 6)
            scraped = await asyncio.to_thread(page, f"http://127.0.0.1:{flags['metrics_port']}/metrics")
            assert [total(scraped, f"specdec_{name}_total") for name in ("forwards", "rows")] == [8, 25]

            child.send_signal(signal.SIGTERM)
            await line_with(child, "draining 1 calls")
            reply = await client.ask(0, prompt(20))
            assert reply.load.draining and isinstance(reply.result, Verification)
            assert await health(flags["port"]) == health_pb2.HealthCheckResponse.NOT_SERVING
            await client.call.done_writing()
            assert await client.call.read() is grpc.aio.EOF
        assert await asyncio.wait_for(child.wait(), 20) == 0
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_what_only_loading_can_tell_ends_the_process_with_one_sentence(folders: dict[str, Path]) -> None:
    child = await start("--port", "0", "--model", str(folders["llama"]), "--max-context", "4096")
    _, errors = await asyncio.wait_for(child.communicate(), 100)
    assert child.returncode == 2
    last = errors.decode().splitlines()[-1]
    assert last == "target_service: max_context = 4096: the model has 160 positions"
    assert b"Traceback" not in errors
