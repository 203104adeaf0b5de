"""How much one coordinator carries, beside verifiers that take no time of the processor.

    python -m benchmarks.capacity [--sessions 500] [--seconds 20] [--quick] [--json FILE]

Pace: so many sessions at two cycles a second each; overhead is a cycle's time beyond what the verifier took.
Saturation: sessions whose verifications take no time, cycles a second of all together. Idle: memory of the coordinator
with so many sessions that wait for a verification, over what it had without them. Draft lengths: one session whose
drafts are always right and take no time either, by k: what a cycle costs must not grow with the tokens in it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.models import prepared
from benchmarks.report import Row, parser, percentile, report
from protos.generation_pb2 import Chunk
from specdec.core.errors import SpecdecError
from specdec.edge.client import Client
from specdec.edge.cluster import free_ports
from specdec.edge.cores import usable_cores
from specdec.edge.process import ChildProcess

VERIFIERS = 2
PACE = 0.5  # seconds of a verification: two cycles a second
SATURATING = 64  # sessions
READY = 60.0
RAMP = 3.0  # seconds before anything counts
DRAFT_LENGTHS = (0, 1, 2, 4, 8, 16)
REQUEST: dict[str, Any] = {"token_ids": [1, 2, 3], "max_tokens": 100_000, "temperature": 0.0, "ignore_eos": True}
PLAIN = {"num_draft_tokens": 0}


@dataclass
class Heard:
    """By all clients, since `counting`. overhead: seconds of cycles beyond their verifications."""

    counting: bool = False
    cycles: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    overhead: list[float] = field(default_factory=list)

    async def listen(self, ramp: float, seconds: float) -> float:
        """Counts for about so many seconds, after a ramp; returns for how many."""
        await asyncio.sleep(ramp)
        self.counting, begun = True, time.perf_counter()
        await asyncio.sleep(seconds)
        self.counting = False
        return time.perf_counter() - begun

    def add(self, chunk: Chunk) -> None:
        if self.counting:
            self.cycles += 1
            timing = chunk.timing
            self.overhead.append((timing.cycle_us - timing.verify_compute_us) / 1e6)
            self.draft_tokens += chunk.num_draft_tokens
            self.accepted_tokens += chunk.num_accepted_tokens


@dataclass
class Bench:
    coordinator: ChildProcess
    address: str
    pace: Path

    def set_pace(self, seconds: float) -> None:
        self.pace.write_text(str(seconds))

    def memory(self) -> int:
        """Bytes."""
        pages = Path(f"/proc/{self.coordinator.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """Seconds of the processor so far."""
        times = Path(f"/proc/{self.coordinator.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def bench(folder: str, logs: Path, sessions: int) -> AsyncIterator[Bench]:
    pace = logs / "pace"
    pace.write_text("0")
    ports = free_ports(VERIFIERS + 2)
    async with AsyncExitStack() as exits:

        async def started(name: str, module: str, *arguments: str) -> ChildProcess:
            child = ChildProcess(
                name,
                module,
                arguments,
                log_file=logs / f"{name}.log",
                cores=usable_cores(),
                environment={"INSTANT_SECONDS_FILE": str(pace), "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            await child.start()
            exits.push_async_callback(child.stop, 1.0)
            return child

        for i, port in enumerate(ports[2:]):
            await started(f"verifier-{i}", "benchmarks.subjects.instant_verifier", folder, str(port))
        coordinator = await started(
            "coordinator",
            "coordinator",
            *("--model", folder, "--target-addresses", ",".join(f"127.0.0.1:{port}" for port in ports[2:])),
            *("--draft-addresses", f"127.0.0.1:{ports[1]}"),  # nobody there: drafts are the coordinator's own
            *("--port", str(ports[0]), "--max-streams", str(2 * sessions), "--verify-timeout", "1000"),
        )
        address = f"127.0.0.1:{ports[0]}"
        async with Client(address) as client, asyncio.timeout(READY):
            while not await _complete(client):  # noqa: ASYNC110 (the state of other processes)
                await asyncio.sleep(0.1)
        yield Bench(coordinator, address, pace)


async def _complete(client: Client) -> bool:
    try:
        return (await client.info()).ready_verifiers == VERIFIERS
    except SpecdecError:
        return False


async def load(address: str, sessions: int, heard: Heard, during: Any, **request: Any) -> None:
    """Runs `during` while so many sessions generate."""

    async def one(client: Client) -> None:
        async for event in client.generate(**REQUEST, **request):
            if isinstance(event, Chunk):
                heard.add(event)

    async with AsyncExitStack() as exits:
        clients = [await exits.enter_async_context(Client(address, patience=0.0)) for _ in range(4)]
        tasks = []
        for i in range(sessions):
            tasks.append(asyncio.create_task(one(clients[i % len(clients)])))
            if i % 16 == 15:
                await asyncio.sleep(PACE / 32)  # spread over the pace: they do not all want their tokens at once
        try:
            await during()
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    assert not failed, failed[:3]


async def by_draft_length(address: str, seconds: float) -> list[Row]:
    """Of one session beside verifications that take no time. The verifier's token is always the same, which n-gram
    drafts, made in the coordinator, guess right."""
    rows: list[Row] = []
    base = 0.0
    for k in DRAFT_LENGTHS:
        heard = Heard()

        ramp = RAMP / len(DRAFT_LENGTHS)
        await load(address, 1, heard, partial(heard.listen, ramp, seconds), drafter="ngram", num_draft_tokens=k)
        overhead = 1e3 * percentile(heard.overhead, 0.5)
        base = base or overhead
        rows.append(Row("overhead of a cycle, p50", f"one session, k = {k}", overhead, "ms", "k = 0", base))
        if k:
            accepted = (float(heard.accepted_tokens), "tokens", "draft tokens", float(heard.draft_tokens))
            rows.append(Row("accepted", f"one session, k = {k}", *accepted))
    return rows


async def measured(folder: str, sessions: int, seconds: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as logs:
        async with bench(folder, Path(logs), sessions) as b:
            paced, saturated = Heard(), Heard()
            rates: dict[str, float] = {}

            async def counted(heard: Heard, name: str) -> None:
                await asyncio.sleep(RAMP)
                cpu = b.cpu()
                spent = await heard.listen(0.0, seconds)
                rates[name] = heard.cycles / spent
                rates[f"{name} cpu"] = (b.cpu() - cpu) / max(1, heard.cycles)

            lengths = await by_draft_length(b.address, seconds / len(DRAFT_LENGTHS))
            await load(b.address, SATURATING, saturated, lambda: counted(saturated, "saturated"), **PLAIN)
            b.set_pace(PACE)
            await asyncio.sleep(1.0)
            await load(b.address, sessions, paced, lambda: counted(paced, "paced"), **PLAIN)
            b.set_pace(3600.0)
            await asyncio.sleep(1.0)
            before = b.memory()
            after = before

            async def idle() -> None:
                nonlocal after
                await asyncio.sleep(RAMP + sessions / 100)
                after = b.memory()

            await load(b.address, sessions, Heard(), idle, **PLAIN)
    paced_as = f"{sessions} sessions, {1 / PACE:g} cycles a second each"
    return [
        Row("cycles a second", paced_as, rates["paced"], "", "asked for", sessions / PACE),
        Row("overhead of a cycle, p50", paced_as, 1e3 * percentile(paced.overhead, 0.5), "ms"),
        Row("overhead of a cycle, p99", paced_as, 1e3 * percentile(paced.overhead, 0.99), "ms"),
        Row("coordinator's processor time of a cycle", paced_as, 1e3 * rates["paced cpu"], "ms"),
        Row("cycles a second", f"{SATURATING} sessions, saturated", rates["saturated"], ""),
        Row("coordinator's processor time of a cycle", "saturated", 1e3 * rates["saturated cpu"], "ms"),
        Row("memory of an idle session", f"mean of {sessions}", (after - before) / sessions / 1024, "KiB"),
        *lengths,
    ]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--model", default="smollm2", help="for its tokenizer alone")
    arguments.add_argument("--sessions", type=int, default=500)
    arguments.add_argument("--seconds", type=float, default=20.0)
    options = arguments.parse_args()
    seconds = 5.0 if options.quick else options.seconds
    rows = asyncio.run(measured(prepared(options.model), options.sessions, seconds))
    report("What one coordinator carries", rows, options.json)


if __name__ == "__main__":
    main()
