"""What a cycle costs beyond its forwards: cycle time minus the draft's and the target's compute, as the replicas
account for it, over real processes on loopback.

    python -m benchmarks.overhead [--quick] [--json FILE] [--model FOLDER]

One and eight sessions, `memory://` and `redis://`, tracing off and on, k = 4 n-gram drafts. With eight sessions a
message also waits for the forward that runs when it arrives; that time is the replica's queue, shown on its own.
Configurations alternate within a run. `tokens/s` compares tracing on with tracing off on the same stack.

The baseline of one session's overhead is what gRPC alone takes: a cycle makes two round trips, so twice the round trip
of an echo server in a process of its own, after a pause as long as a cycle. Processors that fall asleep and caches gone
cold make that far more than a back-to-back ping-pong."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.echo import echo_round_trip
from benchmarks.models import prepared
from benchmarks.report import Row, parser, percentile, report
from protos.generation_pb2 import Chunk, CycleTiming
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster, ClusterSpec
from tests.otlp_receiver import OtlpReceiver
from tests.redis_server import RedisProcess

PROMPT = "Repeat this line again and again: the quick brown fox jumps over the lazy dog.\n" * 3
NUM_DRAFT_TOKENS = 4
GOAL_MS = 1.5  # p50 of one session's overhead
ROUND_TRIPS = 2  # of one cycle: to the drafter and to the verifier
Configurations = Sequence[tuple[str, bool]]  # store, tracing
CONFIGURATIONS: Configurations = (("memory://", False), ("memory://", True), ("redis://", False), ("redis://", True))
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass
class Sample:
    """Of one configuration, gathered over the rounds. Times in milliseconds."""

    overhead: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    cycle: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)

    def add(self, timing: CycleTiming) -> None:
        queue = timing.draft_queue_us + timing.verify_queue_us
        compute = timing.draft_compute_us + timing.verify_compute_us
        self.cycle.append(timing.cycle_us / 1e3)
        self.queue.append(queue / 1e3)
        self.overhead.append((timing.cycle_us - compute - queue) / 1e3)


Samples = dict[tuple[str, bool, int], Sample]  # by store, tracing, sessions


async def one_session(client: Client, tokens: int, sample: Sample, prompt: str) -> int:
    """Tokens received. The first cycle computes the prompt and is left out."""
    count, first = 0, True
    async for event in client.generate(
        text=prompt, max_tokens=tokens, ignore_eos=True, temperature=0.0, num_draft_tokens=NUM_DRAFT_TOKENS
    ):
        if isinstance(event, Chunk):
            count += len(event.tokens)
            if not first:
                sample.add(event.timing)
            first = False
    return count


async def measure(
    address: str, sessions: int, tokens: int, sample: Sample, prompt: Callable[[int], str] = lambda number: PROMPT
) -> None:
    clock = asyncio.get_running_loop().time
    async with Client(address) as client:
        start = clock()
        counts = await asyncio.gather(*(one_session(client, tokens, sample, prompt(i)) for i in range(sessions)))
        sample.tokens_per_second.append(sum(counts) / (clock() - start))


async def run(model: str, configurations: Configurations, rounds: int, tokens: int) -> Samples:
    samples: Samples = {}
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        redis = exits.enter_context(RedisProcess())
        receiver = exits.enter_context(OtlpReceiver())
        stores = {"memory://": "memory://", "redis://": redis.url}
        for number in range(rounds):
            for name, tracing in configurations:
                logs = folder / f"{number}-{name[:5]}-{tracing}"
                logs.mkdir()
                with environment(ENDPOINT, receiver.endpoint if tracing else None):
                    async with Cluster(ClusterSpec(model, store=stores[name]), logs, lambda line: None) as cluster:
                        await measure(cluster.address, 1, 4, Sample())  # warm-up
                        for sessions in (1, 8):
                            sample = samples.setdefault((name, tracing, sessions), Sample())
                            await measure(cluster.address, sessions, tokens, sample)
            print(f"round {number + 1} of {rounds} done", flush=True)
    return samples


def rows_of(samples: Samples) -> list[Row]:
    pause = statistics.median(samples["memory://", False, 1].cycle) / 1e3
    floor = ROUND_TRIPS * 1e3 * echo_round_trip(pause)
    rows = [
        Row("gRPC alone", f"{ROUND_TRIPS} echoes after {1e3 * pause:.0f} ms", floor, "ms", "goal", GOAL_MS),
        Row("gRPC alone", f"{ROUND_TRIPS} echoes back to back", ROUND_TRIPS * 1e3 * echo_round_trip(0.0), "ms"),
    ]
    for (store, tracing, sessions), sample in samples.items():
        subject = f"{store} {sessions} session{'s' if sessions > 1 else ''}, tracing {'on' if tracing else 'off'}"
        beside = ("gRPC alone", floor) if sessions == 1 else ("", None)
        rows += [
            Row("overhead p50", subject, statistics.median(sample.overhead), "ms", *beside),
            Row("overhead p99", subject, percentile(sample.overhead, 0.99), "ms"),
            Row("queue p50", subject, statistics.median(sample.queue), "ms"),
            Row("cycle p50", subject, statistics.median(sample.cycle), "ms"),
        ]
        off = samples[store, False, sessions]
        if tracing:
            rows.append(
                Row(
                    "tokens/s",
                    subject,
                    statistics.median(sample.tokens_per_second),
                    "tokens/s",
                    "tracing off",
                    statistics.median(off.tokens_per_second),
                )
            )
    return rows


@contextmanager
def environment(name: str, value: str | None) -> Iterator[None]:
    """What the child processes inherit."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--model", default="smollm2", help="target: anything that specdec.lm.prepare takes")
    options = arguments.parse_args(argv)
    rounds, tokens = (1, 20) if options.quick else (5, 160)
    configurations = CONFIGURATIONS[:3] if options.quick else CONFIGURATIONS
    rows = rows_of(asyncio.run(run(prepared(options.model), configurations, rounds, tokens)))
    report("Overhead of a cycle", rows, options.json)


if __name__ == "__main__":
    main()
