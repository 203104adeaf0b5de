"""The replica as it is deployed: a process of its own, from its flags to its exit code."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import draft_service.__main__ as process
from draft_service.config import DraftConfig
from draft_service.drafters import DraftModel
from draft_service.drafters.lm import LmDrafter
from draft_service.drafters.ngram import NgramDrafter
from protos import common_pb2, draft_pb2_grpc
from specdec.core.draft import Draft
from specdec.core.laws import check_draws
from specdec.core.sampling import SamplingParams
from specdec.edge.channel import open_channel
from specdec.edge.cluster import free_ports
from specdec.edge.info_codec import decode_info
from specdec.edge.server import LIVE
from tests.draft_service.jobs import draft_one, job, random_ids, tokens
from tests.draft_service.wire import Client
from tests.metrics import page, total

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def start(*arguments: str) -> Process:
    command = [sys.executable, "-m", "draft_service", "--port", "0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return await asyncio.create_subprocess_exec(*command, env=environment, stderr=PIPE)


async def line_with(child: Process, pattern: str) -> re.Match[str]:
    """The first line of its log that matches."""
    assert child.stderr is not None
    seen = []
    async with asyncio.timeout(200):
        async for line in child.stderr:
            seen.append(line.decode())
            if match := re.search(pattern, seen[-1]):
                return match
    raise AssertionError(f"it ended without {pattern!r}: {''.join(seen)}")


@asynccontextmanager
async def replica(*arguments: str) -> AsyncIterator[tuple[Process, grpc.aio.Channel]]:
    child = await start(*arguments)
    try:
        port = (await line_with(child, r"serving .* on 127\.0\.0\.1:(\d+)"))[1]
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield child, channel
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int((await health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True)).status)


@pytest.mark.timeout(300)
@pytest.mark.scenario("B124")
async def test_a_real_replica_drafts_by_its_flags_and_drains_on_sigterm(
    model_folder: Path, new_drafter: Callable[..., LmDrafter]
) -> None:
    """Settings reach the drafters: read back from the process, and seen in what it drafts."""
    flags = {"drafters": "lm,ngram", "model": str(model_folder), "threads": "1", "token_budget": "5"}
    flags["dtype"] = "float32"
    flags |= {"kv_tokens": "128", "max_draft_tokens": "3", "max_support": "4", "metrics_port": str(free_ports(1)[0])}
    async with replica(*(part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value))) as (
        child,
        channel,
    ):
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        assert await health(channel, "specdec.v1.DraftService") == SERVING
        info = decode_info(await stub.Info(common_pb2.InfoRequest()))
        assert info.config.items() >= flags.items()
        assert (info.max_context, info.max_nodes, info.drafters) == (128, 3, ("lm", "ngram"))

        client, context = Client(stub, "s"), random_ids(1, 17)
        params = SamplingParams(temperature=0.7)
        reply = await client.sampled(0, context, 9, open=client.opening(params=params, seed=8))
        assert isinstance(reply.result, Draft)
        check_draws(reply.result, 8, 17)
        expected = draft_one(new_drafter(), job(context, 3, params, kind=reply.result.kind, support=4, seed=8))
        assert tokens(reply.result) == tokens(expected)
        assert [law.ids.tolist() for law in reply.result.laws] == [law.ids.tolist() for law in expected.laws]
        scraped = await asyncio.to_thread(page, f"http://127.0.0.1:{flags['metrics_port']}/metrics")
        assert [total(scraped, f"specdec_{name}_total") for name in ("forwards", "rows")] == [6, 19]

        child.send_signal(signal.SIGTERM)
        await line_with(child, "draining 1 calls")
        reply = await client.ask(17, [5])
        assert reply.load.draining and isinstance(reply.result, Draft)
        await client.call.done_writing()
        assert await client.call.read() is grpc.aio.EOF
        async with asyncio.timeout(30):
            assert await child.wait() == 0


async def test_a_stream_that_never_ends_does_not_outlive_the_grace() -> None:
    async with replica("--drain-grace", "0.2") as (child, channel):
        client = Client(draft_pb2_grpc.DraftServiceStub(channel), "s")
        await client.ask(0, [1, 2, 1, 2], open=client.opening("ngram"))
        child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await child.wait() == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await client.call.read()
            raise AssertionError("the stream went on")


@pytest.mark.scenario("B122")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-draft-tokens", "1.9"], r"max_draft_tokens = '1.9': must be an integer from 1 to 255"),
        (["--drafters", "lm"], r"model = None: the drafter 'lm' needs a model"),
        (["--model", "/nowhere"], r"model = '/nowhere': no folder with a tokenizer.json"),
    ],
)
async def test_a_setting_that_cannot_work_ends_the_process_before_it_serves(
    arguments: list[str], sentence: str
) -> None:
    """One sentence with name, value and remedy, and exit code 2."""
    child = await start(*arguments)
    _, log = await child.communicate()
    assert child.returncode == 2
    assert re.search(sentence, log.decode()) and "Traceback" not in log.decode() and "serving" not in log.decode()


@pytest.mark.scenario("B139")
async def test_health_is_not_serving_until_the_drafters_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """B139: nor is it live: a startup probe holds both."""
    loaded = threading.Event()

    def slow_load(config: DraftConfig, metrics: object) -> dict[str, NgramDrafter]:
        assert loaded.wait(30), "the test lets it go on"
        return {"ngram": NgramDrafter(DraftModel())}

    monkeypatch.setattr(process, "load_drafters", slow_load)
    port = free_ports(1)[0]
    task = asyncio.create_task(process.serve(DraftConfig(port=port), {"OTEL_SDK_DISABLED": "true"}))
    async with open_channel(f"127.0.0.1:{port}") as channel:
        assert [await health(channel, name) for name in ("", LIVE)] == [NOT_SERVING] * 2
        loaded.set()
        async with asyncio.timeout(30):
            async for update in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
                if update.status == SERVING:
                    break
        assert await health(channel, LIVE) == SERVING
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
