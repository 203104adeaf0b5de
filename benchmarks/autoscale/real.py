"""Real processes on this machine: the table of times, and the model beside them."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
import torch

from benchmarks.autoscale.cluster import Simulation
from benchmarks.autoscale.manifests import Scaler
from benchmarks.autoscale.outcome import COORDINATOR, DRAFT, SEPARATE, TARGET, Settings
from benchmarks.autoscale.times import Times
from benchmarks.autoscale.traces import Generation
from benchmarks.models import prepared
from benchmarks.report import Row, hardware, percentile
from protos import common_pb2, target_pb2_grpc
from protos.generation_pb2 import Chunk, Complete, Started
from specdec.core.step_time import StepTimeTable
from specdec.edge.channel import open_channel
from specdec.edge.client import Client, GenerateFields
from specdec.edge.cluster import Cluster, ClusterSpec
from specdec.edge.draft_entries import draft_entries
from specdec.edge.info_codec import decode_info
from specdec.edge.messages import ReplicaInfo
from specdec.edge.profile.prompts import BUILT_IN
from specdec.lm.draft_model import load_draft_model
from specdec.lm.networks import Dtype
from specdec.lm.runner import Runner
from target_service.step_time import Tuner

DEPTH, OUTPUT = 4, 96
TUNE = 6.0  # seconds for a table
DRAFT_ROWS, DRAFT_CONTEXT = 256, 2048
LEVELS = (1, 2, 4, 8, 16)  # generations at once


@dataclass
class Heard:
    """Microseconds of every cycle but a generation's first, and what all of them emitted."""

    cycles: list[tuple[int, ...]] = field(default_factory=list)
    waits: array[float] = field(default_factory=lambda: array("d"))
    draft_waits: array[float] = field(default_factory=lambda: array("d"))
    prompts: list[int] = field(default_factory=list)
    tokens: int = 0
    judged: int = 0
    accepted: int = 0
    cycle_count: int = 0
    seconds: float = 0.0

    @property
    def alpha(self) -> float:
        return self.accepted / max(1, self.judged)


async def generate(address: str, drafter: str, first: int, count: int, depth: int | None) -> Heard:
    """So many generations at once, greedy. depth: draft tokens of a cycle, None: as the planner says. Each prompt has
    a number in front, from `first` on: replicas keep what they computed of one that was asked before, and the model
    shares nothing."""
    heard = Heard()

    async def one(client: Client, number: int) -> None:
        begun = False
        fields = fields_of(first + number)
        if depth is not None:
            fields["num_draft_tokens"] = depth
        fields |= {"max_tokens": OUTPUT, "temperature": 0.0, "ignore_eos": True, "drafter": drafter}
        async for event in client.generate(**fields):
            if isinstance(event, Started):
                heard.prompts.append(event.prompt_tokens)
            if isinstance(event, Chunk):
                t = event.timing
                heard.waits.append(t.verify_queue_us / 1e6)
                if event.num_draft_tokens:
                    heard.draft_waits.append(t.draft_queue_us / 1e6)
                if begun:
                    heard.cycles.append(
                        (t.cycle_us, t.draft_us, t.draft_queue_us, t.draft_compute_us, t.verify_queue_us,
                         t.verify_compute_us, event.num_draft_tokens)
                    )  # fmt: skip
                begun = True
            if isinstance(event, Complete):
                stats = event.draft_stats
                heard.tokens += event.usage.completion_tokens
                heard.judged += sum(stats.reached_per_position)
                heard.accepted += stats.accepted_tokens
                heard.cycle_count += stats.cycles

    async with Client(address) as client:
        start = time.perf_counter()
        await asyncio.gather(*(one(client, number) for number in range(count)))
        heard.seconds = time.perf_counter() - start
    return heard


def fields_of(number: int) -> GenerateFields:
    """Of the built-in prompts in turn, this number in front."""
    prompt = BUILT_IN[number % len(BUILT_IN)]
    (role, content), *others = prompt.messages
    return replace(prompt, messages=((role, f"{number}. {content}"), *others)).fields()


def spec(target: str, draft: str, dtype: str) -> ClusterSpec:
    """One verifier and one drafter, one thread each: they compute at the same time."""
    entries = asyncio.run(draft_entries(draft, target))
    return ClusterSpec(target, draft=entries, dtype=dtype, threads=1, tune_seconds=TUNE)


async def info_of(address: str) -> ReplicaInfo:
    async with open_channel(address) as channel:
        return decode_info(await target_pb2_grpc.TargetServiceStub(channel).Info(common_pb2.InfoRequest()))


def measured(target_name: str, draft: str, dtype: str) -> Times:
    target = prepared(target_name)
    what, starts, name = spec(target, draft, dtype), dict[str, float](), draft.partition(":")[0]

    async def run() -> tuple[ReplicaInfo, Heard, Heard]:
        begun = time.perf_counter()

        def progress(line: str) -> None:
            starts[line.split("-")[0].split()[0]] = time.perf_counter() - begun

        with tempfile.TemporaryDirectory() as logs:
            async with Cluster(what, Path(logs), progress) as cluster:
                every = await generate(cluster.address, name, 0, len(BUILT_IN), DEPTH)  # the verifier's table learns
                heard = await generate(cluster.address, name, len(BUILT_IN), 1, DEPTH)
                [verifier] = [one for one in cluster.members if one.process.name.startswith("verifier")]
                return await info_of(verifier.address), heard, every

    info, heard, every = asyncio.run(run())
    assert info.step_times is not None, "a verifier that measured tells its table"
    step, table = draft_table(draft, target), heard.cycles
    law = median((c[3] / 1e6) / c[6] for c in table if c[6]) - step.estimate(1, 128)
    seconds = [[one + max(0.0, law) for one in line] for line in step.seconds]
    return Times(
        origin=f"{target_name} in {dtype} with {draft}, one thread each, {hardware()}, {time.strftime('%Y-%m-%d')}",
        target=info.step_times,
        draft=StepTimeTable.of(step.rows, step.contexts, seconds),
        verify_way=median(c[0] - c[1] - c[4] - c[5] for c in table) / 1e6,
        draft_way=median(c[1] - c[2] - c[3] for c in table if c[6]) / 1e6,
        target_start=starts["verifier"] - TUNE,
        draft_start=starts["drafter"],
        budget=info.token_budget,
        alpha=every.alpha,
    )


def draft_table(draft: str, target: str) -> StepTimeTable:
    """Forwards of the drafter's model, as a verifier measures its own."""
    name, _, argument = draft.partition(":")
    path, dtype = (target, argument or "int8") if name == "self" else (prepared(argument), "int8")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        loaded = load_draft_model(path, target=None, dtype=cast(Dtype, dtype), device="cpu").loaded
        return Tuner(Runner(loaded, DRAFT_CONTEXT), TUNE, DRAFT_ROWS, DRAFT_ROWS, DRAFT_CONTEXT).table()
    finally:
        torch.set_num_threads(threads)


def checked(times: Times, scalers: Mapping[str, Scaler], options: argparse.Namespace) -> list[Row]:
    """Throughput and waits of one verifier and one drafter under rising load, beside the model's. The model is given
    the times of this very run and both draft DEPTH tokens, so that it is queues that are compared, and neither planners
    nor how busy the machine was when the table was measured."""
    what, name = spec(prepared(options.target), options.draft, options.dtype), options.draft.partition(":")[0]

    async def run() -> dict[int, tuple[ReplicaInfo, Heard]]:
        with tempfile.TemporaryDirectory() as logs:
            async with Cluster(what, Path(logs), lambda line: None) as cluster:
                await generate(cluster.address, name, 0, LEVELS[-1], None)
                [verifier] = [one for one in cluster.members if one.process.name.startswith("verifier")]
                found = {}
                for count in LEVELS[: 3 if options.quick else None]:
                    heard = await generate(cluster.address, name, LEVELS[-1] + count, count, DEPTH)
                    found[count] = (await info_of(verifier.address), heard)
                return found

    rows = []
    for count, (info, heard) in asyncio.run(run()).items():
        rows += beside(live(times, info, heard), scalers, count, heard)
    return rows


def live(times: Times, info: ReplicaInfo, heard: Heard) -> Times:
    """As things were in this run: the verifier's table as its forwards have corrected it, the drafter's in proportion
    to what its drafts took."""
    assert info.step_times is not None, "a verifier that measured tells its table"
    drafts = [c[3] / 1e6 / c[6] for c in heard.cycles if c[6]]
    slower = median(drafts) / times.draft.estimate(len(heard.prompts), 128) if drafts else 1.0
    return replace(
        times.with_draft_cost(slower),
        target=info.step_times,
        budget=info.token_budget,
        verify_way=median(c[0] - c[1] - c[4] - c[5] for c in heard.cycles) / 1e6,
        draft_way=median([c[1] - c[2] - c[3] for c in heard.cycles if c[6]] or [0]) / 1e6,
    )


def beside(times: Times, scalers: Mapping[str, Scaler], count: int, heard: Heard) -> list[Row]:
    load = [Generation(0.0, prompt, OUTPUT, heard.alpha) for prompt in heard.prompts]
    fixed = Settings(max_draft=DEPTH, fixed={TARGET: 1, DRAFT: 1, COORDINATOR: 1})
    model = Simulation(SEPARATE, scalers, times, load, fixed, seed=1).run()
    subject = f"{count} generations at once"
    cycles = heard.cycle_count

    def row(measure: str, ours: float, theirs: float, unit: str) -> Row:
        return Row(measure, subject, ours, unit, "processes", theirs)

    return [
        row("tokens a second", model.tokens / model.end, heard.tokens / heard.seconds, ""),
        row("tokens of a cycle", model.tokens / model.counts["specdec_cycles_total"], heard.tokens / cycles, ""),
        row("queue wait of a verification, mean", _mean(model.waits), _mean(heard.waits), "ms"),
        row("queue wait of a verification, p95", _tail(model.waits), _tail(heard.waits), "ms"),
        row("queue wait of a draft, mean", _mean(model.draft_waits), _mean(heard.draft_waits), "ms"),
    ]


def _mean(values: Sequence[float]) -> float:
    return 1e3 * float(np.mean(values)) if len(values) else 0.0


def _tail(values: Sequence[float]) -> float:
    return 1e3 * percentile(values, 0.95) if len(values) else 0.0
