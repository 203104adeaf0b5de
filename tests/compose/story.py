"""What a stack has to hold, one after the other; each part prints its figures and raises NotHeld."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path

from protos.generation_pb2 import Chunk, Complete, Started
from specdec.core.errors import SpecdecError
from specdec.edge.client import Client
from tests.compose import trace
from tests.compose.engine import EngineFailed
from tests.compose.failure import NotHeld
from tests.compose.load import Load
from tests.compose.stack import Stack
from tests.metrics import total
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

SERVES_WITHIN = 300.0  # seconds
FOUND_WITHIN = 120.0
STOPPED_WITHIN = 60  # above stop_grace_period of docker-compose.yml
ENOUGH = 6  # requests under load in every state of the stack
SPANS_WITHIN = 30.0
USED = {  # service: metrics that a stack which was used has counted
    "coordinator": (
        "specdec_num_emitted_tokens_total",
        "specdec_num_drafts_total",
        "specdec_num_accepted_tokens_total",
    ),
    "draft": ("specdec_forwards_total", "specdec_compute_seconds_count"),
    "target": ("specdec_forwards_total", "specdec_batch_size_count", "specdec_kv_store_blocks_total"),
}


async def tell(stack: Stack, receiver: OtlpReceiver, trace_file: Path | None) -> None:
    await start(stack)
    await asyncio.to_thread(hardened, stack)
    await asyncio.to_thread(forwards_in_c, stack)
    await asyncio.to_thread(generate_command, stack)
    await one_trace(stack, receiver, trace_file)
    await scaled_drafters(stack)
    await stopped_verifier(stack)
    await asyncio.to_thread(metrics, stack)


async def start(stack: Stack) -> None:
    """From nothing, the model's volume included, to the first token that reaches this host."""
    begun = time.monotonic()
    await asyncio.to_thread(stack.up)
    started = time.monotonic() - begun
    await _eventually(lambda: _first_token(stack.address), "a first token", SERVES_WITHIN)
    print(f"start to first token {time.monotonic() - begun:.1f} s (`up` returned after {started:.1f} s)", flush=True)


async def _first_token(address: str) -> bool:
    async with Client(address) as client:
        try:
            async with aclosing(client.generate(text="Once upon a time", max_tokens=4)) as events:
                async for event in events:
                    if isinstance(event, Chunk):
                        return True
        except SpecdecError:
            pass
    return False


def hardened(stack: Stack) -> None:
    """As running processes see it, whatever the files say."""
    for service in ("coordinator", "draft", "target", "redis", "redis-kv"):
        for container in stack.containers(service):
            who = stack.engine.docker("exec", container, "id", "-u").strip()
            status = stack.engine.docker("exec", container, "cat", "/proc/1/status")
            capabilities = next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1]
            script = "touch /written 2>/dev/null && echo written || true"
            written = stack.engine.docker("exec", container, "sh", "-c", script).strip()
            if who == "0" or int(capabilities, 16) or written:
                raise NotHeld(
                    f"{service} runs as user {who} with capabilities {capabilities}; root: {written or 'read-only'}"
                )
    print("every process: not root, no capabilities, root file system read-only", flush=True)


def forwards_in_c(stack: Stack) -> None:
    """The image has no compiler, and yet what was made in its build loads on this processor."""
    script = "import torch; from specdec.lm.native.library import library; print(library()._name)"
    (container, *_) = stack.containers("target")
    try:
        library = stack.engine.docker("exec", container, "python", "-c", script).strip()
    except EngineFailed as error:
        raise NotHeld(f"the verifier computes in torch, not in C: {error}") from None
    print(f"forwards in C without a compiler: {Path(library).name}", flush=True)


def generate_command(stack: Stack) -> None:
    """`specdec generate` from this host, as a user types it."""
    command = [sys.executable, "-P", "-m", "specdec", "generate", "--chat", "What is the capital of France?"]
    command += ["--temperature", "0", "--max-tokens", "24", "--address", stack.address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=120)
    print(f"specdec generate: {done.stdout.strip()!r}", flush=True)
    if done.returncode or "Paris" not in done.stdout:
        raise NotHeld(f"`specdec generate` ended with {done.returncode}: {done.stderr.strip()}")


async def one_trace(stack: Stack, receiver: OtlpReceiver, file: Path | None) -> None:
    """Every span of one request, from three containers, in one trace."""
    session, cycles = "", 0
    request = {"text": "The lighthouse", "max_tokens": 24, "temperature": 0.0, "num_draft_tokens": 3, "drafter": "self"}
    async with Client(stack.address) as client:
        async for event in client.generate(**request):  # type: ignore[arg-type]
            if isinstance(event, Started):
                session = event.session_id
            elif isinstance(event, Complete):
                cycles = event.draft_stats.cycles
    spans: list[ReceivedSpan] = []

    def whole() -> bool:
        spans[:] = trace.of_session(receiver.spans, session)
        return bool(spans) and not trace.faults(spans, cycles)

    await asyncio.to_thread(receiver.wait_for, whole, SPANS_WITHIN)
    found = trace.faults(spans, cycles)
    if found:
        raise NotHeld(f"the trace of one request: {'; '.join(found[:5])} ({len(receiver.spans)} spans came in all)")
    services = len({span.service for span in spans})
    print(f"one request, one trace: {len(spans)} spans of {services} containers\n{trace.shown(spans)}", flush=True)
    if file is not None:
        await asyncio.to_thread(file.write_text, json.dumps([asdict(span) for span in spans], indent=1))


async def scaled_drafters(stack: Stack) -> None:
    """1 -> 3 -> 1 under load, without an error."""
    await _count(stack, draft=1)
    async with Load(stack.address) as load:
        await load.more(ENOUGH)
        for count in (3, 1):
            before, begun = load.tally.requests, time.monotonic()
            await _count(stack, draft=count)
            took, during = time.monotonic() - begun, load.tally.requests - before
            await load.more(ENOUGH)
            print(f"drafters scaled to {count} in {took:.1f} s, {during} requests meanwhile", flush=True)
    _held(load, "drafters scaled 1 -> 3 -> 1")


async def stopped_verifier(stack: Stack) -> None:
    """One of two is stopped while its streams run: they go on at the other."""
    await _count(stack, target=2)
    async with Load(stack.address) as load:
        await load.more(ENOUGH)
        victim = await asyncio.to_thread(_busiest, stack, "target")
        begun = time.monotonic()
        await asyncio.to_thread(stack.engine.docker, "stop", "--time", str(STOPPED_WITHIN), victim)
        took = time.monotonic() - begun
        await load.more(ENOUGH)
    state = stack.engine.inspect("container", victim)["State"]
    print(f"a verifier stopped in {took:.1f} s, exit code {state['ExitCode']}", flush=True)
    if state["ExitCode"] != 0:
        raise NotHeld(f"the verifier that was stopped ended with {state['ExitCode']}")
    _held(load, "a verifier stopped")


def metrics(stack: Stack) -> None:
    """Every container tells its own; what was used has been counted."""
    for service, names in USED.items():
        pages = [stack.metrics(container) for container in stack.containers(service)]
        values = {name: sum(total(page, name) for page in pages) for name in names}
        print(
            f"/metrics of {len(pages)} {service}: " + ", ".join(f"{n} {v:.0f}" for n, v in values.items()), flush=True
        )
        missing = [name for name, value in values.items() if not value]
        if missing:
            raise NotHeld(f"/metrics of {service} counts no {', '.join(missing)}")


async def _count(stack: Stack, **scales: int) -> None:
    """Returns when the coordinator uses exactly so many."""
    await asyncio.to_thread(lambda: stack.up(**scales))
    async with Client(stack.address) as client:
        await _eventually(lambda: _found(client, scales), f"a coordinator that uses {scales}", FOUND_WITHIN)


async def _eventually(condition: Callable[[], Awaitable[bool]], what: str, within: float) -> None:
    """Raises NotHeld naming `what`."""
    clock = asyncio.get_running_loop().time
    until = clock() + within
    while not await condition():
        if clock() > until:
            raise NotHeld(f"{what} did not come within {within:.0f} s")
        await asyncio.sleep(0.1)


async def _found(client: Client, scales: dict[str, int]) -> bool:
    info = await client.info()
    ready = {"draft": info.ready_drafters, "target": info.ready_verifiers}
    return all(ready[name] == count for name, count in scales.items())


def _busiest(stack: Stack, service: str) -> str:
    containers = stack.containers(service)
    return max(containers, key=lambda container: total(stack.metrics(container), "specdec_sessions"))


def _held(load: Load, what: str) -> None:
    print(f"{what}: {load.tally}", flush=True)
    if load.tally.errors or load.tally.unlike:
        raise NotHeld(f"{what}: {_some(load.tally.errors) or 'a greedy answer changed'}")


def _some(errors: Sequence[str]) -> str:
    return "; ".join(errors[:3])
