"""The picture of a trace: replicas, queue wait and what was paid, over time, each design in its colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.autoscale.cluster import SCRAPE
from benchmarks.autoscale.figures import Prices
from benchmarks.autoscale.outcome import DRAFT, TARGET, Outcome
from benchmarks.autoscale.traces import MINUTE

WINDOW = 6  # moments over which tokens and cost are summed


def draw(outcomes: Sequence[Outcome], wait_target: float, prices: Prices, file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(10, 10), layout="constrained")
    FigureCanvasAgg(figure)
    load, pods, waits, cost = figure.subplots(4, 1, sharex=True)
    for number, outcome in enumerate(outcomes):
        times = [moment.time / MINUTE for moment in outcome.moments]
        color, name = f"C{number}", outcome.design.name
        load.plot(times, [moment.streams for moment in outcome.moments], color=color, label=name)
        verifiers = "pods" if outcome.design.paired else "verifiers"
        pods.step(times, [m.pods[TARGET][1] for m in outcome.moments], color=color, label=f"{name}: {verifiers}")
        if not outcome.design.paired and outcome.design.drafts:
            pods.step(times, [m.pods[DRAFT][1] for m in outcome.moments], "--", color=color, label=f"{name}: drafters")
        waits.plot(times, [max(1e-1, 1e3 * moment.wait) for moment in outcome.moments], color=color)
        cost.plot(times, [_cost(outcome, i, prices) for i in range(len(times))], color=color)
    waits.axhline(1e3 * wait_target, color="grey", linewidth=0.8, linestyle=":")
    load.set(title="generations in progress", ylim=(0, None))
    load.legend(fontsize="small")
    pods.set(title="replicas, those that start or drain included", ylim=(0, None))
    pods.legend(fontsize="small")
    waits.set(title="mean queue wait of a verification, ms (dotted: the scaler's threshold)", yscale="log")
    cost.set(
        title="cost of 1,000 tokens over the last minute, in seconds of a verifier's pod",
        xlabel="minutes",
        ylim=(0, None),
    )
    figure.savefig(file, dpi=110)


def _cost(outcome: Outcome, end: int, prices: Prices) -> float:
    """Without coordinators, who are the same for all."""
    moments = outcome.moments[max(0, end - WINDOW + 1) : end + 1]
    tokens = sum(moment.tokens for moment in moments)
    target = 1 + prices.draft if outcome.design.paired else 1.0
    paid = sum(m.pods[TARGET][1] * target + m.pods.get(DRAFT, (0, 0))[1] * prices.draft for m in moments) * SCRAPE
    return 1000 * paid / tokens if tokens else float("nan")
