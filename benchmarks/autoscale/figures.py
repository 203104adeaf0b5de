"""What came of a simulation, in figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.autoscale.manifests import Scaler
from benchmarks.autoscale.outcome import COORDINATOR, DRAFT, TARGET, Outcome
from benchmarks.autoscale.traces import MINUTE
from benchmarks.report import percentile

FLAP = 10 * MINUTE  # a pod that comes this soon after one went should have stayed
WAIT_METRIC = "specdec_queue_seconds_sum"


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a pod, in that of a verifier's."""

    draft: float
    coordinator: float

    def of(self, outcome: Outcome) -> float:
        """Of the whole run, in seconds of a verifier's pod."""
        seconds: Mapping[str, float] = defaultdict(float, outcome.pod_seconds)
        target = 1 + self.draft if outcome.design.paired else 1.0
        return seconds[TARGET] * target + seconds[DRAFT] * self.draft + seconds[COORDINATOR] * self.coordinator


def wait_target(scalers: Mapping[str, Scaler]) -> float:
    """Seconds of mean wait that the verifiers' scaler puts up with."""
    return next(one.target for one in scalers[TARGET].triggers if WAIT_METRIC in one.query.metrics)


def figures(outcome: Outcome, prices: Prices, target: float) -> Iterator[tuple[str, float, str]]:
    """(measure, value, unit) of one run. target: seconds of mean wait above which there are too few verifiers."""
    tokens = outcome.tokens
    busy = [moment for moment in outcome.moments if moment.messages]
    late = sum(moment.wait > target for moment in busy)
    changes = [change for pool in (TARGET, DRAFT) for change in outcome.changes.get(pool, [])]
    yield "cost of 1,000 tokens", 1000 * prices.of(outcome) / tokens, "pod s"
    yield "queue wait of a verification, p50", 1e3 * percentile(outcome.waits, 0.5), "ms"
    yield "queue wait of a verification, p95", 1e3 * percentile(outcome.waits, 0.95), "ms"
    yield "time to first token, p95", 1e3 * percentile(outcome.first_tokens, 0.95), "ms"
    yield "pace of a generation, p50", percentile(outcome.paces, 0.5), "tokens/s"
    yield "pace of a generation, p5", percentile(outcome.paces, 0.05), "tokens/s"
    yield "time under-provisioned", 100 * late / max(1, len(busy)), "%"
    yield "verifiers, mean", outcome.pod_seconds[TARGET] / outcome.end, "pods"
    if not outcome.design.paired and outcome.design.drafts:
        yield "drafters, mean", outcome.pod_seconds[DRAFT] / outcome.end, "pods"
    yield "changes of replicas", float(len(changes)), ""
    yield "of them flaps", float(sum(flaps(outcome.changes.get(pool, [])) for pool in (TARGET, DRAFT))), ""
    if outcome.design.drafts:
        cycles = outcome.counts["specdec_cycles_total"]
        yield "cycles that fell back", 100 * outcome.fallbacks.total() / cycles, "%"
        yield "tokens of a cycle", tokens / cycles, ""


def flaps(changes: Sequence[tuple[float, int]]) -> int:
    """Changes upwards soon after one downwards."""
    down, found = float("-inf"), 0
    for time, change in changes:
        found += change > 0 and time - down < FLAP
        down = time if change < 0 else down
    return found
