"""From the samples of a run to the rows of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.engine_plan import LAW_NODES, STEP_CONTEXT, Plan, Samples
from benchmarks.report import Row
from benchmarks.subjects.lineup import OURS

GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes that a subject holds, and that it reads for one token; bandwidth: bytes a second, the limit."""

    held: Mapping[str, int]
    read: Mapping[str, int]
    bandwidth: float


def rows_of(plan: Plan, samples: Samples, weights: Weights) -> list[Row]:
    return [
        *speed(plan, samples),
        *bandwidth(plan, samples, weights),
        *steps(plan, samples),
        *first_tokens(samples),
        *laws(samples),
        *memory(samples, weights),
        *profile(samples),
    ]


def speed(plan: Plan, samples: Samples) -> list[Row]:
    """Tokens a second of all streams together, prompts included."""
    rates = {
        (subject, streams): streams * plan.new_tokens / median(seconds)
        for (subject, streams), seconds in samples.generate.items()
    }
    rows = []
    for streams, _ in plan.streams:
        measure = f"{_plural(streams, 'stream')}, {plan.new_tokens} tokens"
        rows += _against({s: rate for (s, n), rate in rates.items() if n == streams}, measure, "tokens/s")
    return rows


def first_tokens(samples: Samples) -> list[Row]:
    lengths = sorted({length for _, length in samples.first})
    rows = []
    for length in lengths:
        times = {s: 1e3 * median(t) for (s, n), t in samples.first.items() if n == length}
        rows += _against(times, f"first token, prompt of {length}", "ms")
    return rows


def bandwidth(plan: Plan, samples: Samples, weights: Weights) -> list[Row]:
    """Of one stream, the prompt's forward taken off: each of the other tokens reads all weights once."""
    limit = weights.bandwidth / 1e9
    rows = [Row("read bandwidth", "probe", limit, "GB/s")]
    for (subject, streams), seconds in samples.generate.items():
        if streams == 1 and (subject, plan.prompt) in samples.first:
            per_token = token_seconds(plan, seconds, samples.first[subject, plan.prompt])
            rate = weights.read[subject] / per_token / 1e9
            rows.append(Row("weights read", subject, rate, "GB/s", "read bandwidth", limit))
    return rows


def token_seconds(plan: Plan, whole: Sequence[float], first: Sequence[float]) -> float:
    """Of one decoded token: what is left of the whole answer after its first token."""
    assert plan.new_tokens > 1, "nothing comes after the first token"
    return (median(whole) - median(first)) / (plan.new_tokens - 1)


def steps(plan: Plan, samples: Samples) -> list[Row]:
    """Steps of our engine: laws and all. More rows beside one row, longer contexts beside the shortest."""
    times = {point: 1e3 * median(seconds) for point, seconds in samples.steps.items()}
    rows = []
    for subject in dict.fromkeys(s for s, _, _ in times):
        one, short = times[subject, 1, STEP_CONTEXT], times[subject, 1, plan.contexts[0]]
        rows += [
            Row(f"step of {n} rows", f"{subject}, context {STEP_CONTEXT}", time, "ms", "1 row", one)
            for n, time in ((n, times[subject, n, STEP_CONTEXT]) for n in plan.rows)
        ]
        rows += [
            Row(f"step at context {c}", subject, times[subject, 1, c], "ms", f"context {plan.contexts[0]}", short)
            for c in plan.contexts
        ]
    return rows


def laws(samples: Samples) -> list[Row]:
    """By form: y alone, or p, tails and outside samples for a drafter's laws. Beside the forward of the same nodes."""
    rows = []
    for subject, times in samples.laws.items():
        forward = 1e3 * median(times["forward"])
        rows += [
            Row(f"laws of {LAW_NODES} nodes, form {form}", subject, 1e3 * median(seconds), "ms", "forward", forward)
            for form, seconds in times.items()
            if form != "forward"
        ]
    return rows


def memory(samples: Samples, weights: Weights) -> list[Row]:
    """Peak of resident memory: all of it, and what came on top of the process with its libraries loaded. Pages of the
    model's file that were mapped while it was read count as long as they were."""
    rows = []
    for subject, peak in samples.peak.items():
        needed = (weights.held[subject] + samples.kv_bytes[subject]) / GIB
        beyond = peak - samples.libraries[subject]
        rows.append(Row("peak memory", subject, peak / GIB, "GiB", "weights + KV budget", needed))
        rows.append(Row("peak memory beyond libraries", subject, beyond / GIB, "GiB", "weights + KV budget", needed))
    return rows


def profile(samples: Samples) -> list[Row]:
    """Where each millisecond of a step of one row goes."""
    rows = []
    for subject, parts in samples.profile.items():
        whole = 1e3 * median(map(sum, zip(*parts.values(), strict=True)))
        rows += [
            Row(f"one step: {part}", subject, 1e3 * median(seconds), "ms", "whole step", whole)
            for part, seconds in parts.items()
        ]
    return rows


def _against(values: Mapping[str, float], measure: str, unit: str) -> list[Row]:
    """Each of ours beside each of the others; alone where there is no other."""
    ours = {s: v for s, v in values.items() if s.startswith(OURS)}
    others = {s: v for s, v in values.items() if s not in ours}
    if not others:
        return [Row(measure, subject, value, unit) for subject, value in ours.items()]
    return [Row(measure, s, value, unit, other, its) for s, value in ours.items() for other, its in others.items()]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
