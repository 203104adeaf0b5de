"""Pools that scale by the thresholds and the behaviour in our own manifests, simulated under load: separate pools of
verifiers and drafters, beside one pool whose pods hold one of each, and beside verifiers alone.

    python -m benchmarks.autoscale [--traces steady,burst,diurnal] [--scalers k8s/components/keda] [--times FILE]
        [--load 3] [--draft-price 0.5] [--sweep] [--quick] [--json FILE] [--picture FILE]
    python -m benchmarks.autoscale --measure FILE    # this machine's table of times, from real processes
    python -m benchmarks.autoscale --check           # the model beside real processes, one verifier and one drafter

`--load` counts verifiers that are busy at the trace's peak, so that a trace fits any table. A pod's price is in that of
a verifier's pod. A generation's tokens come one cycle at a time, with the acceptance that the cost model expects
(`specdec plan`). docs/autoscaling.md says what the model leaves out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.autoscale.cluster import Simulation
from benchmarks.autoscale.figures import Prices, figures, wait_target
from benchmarks.autoscale.manifests import SCALERS, Scaler, read_scalers
from benchmarks.autoscale.outcome import PAIRED, PLAIN, SEPARATE, Design, Outcome, Settings
from benchmarks.autoscale.scrape import LABELS, SIMULATED
from benchmarks.autoscale.times import DEFAULT, Times, read_times, write_times
from benchmarks.autoscale.traces import SHAPES, Shape, Traffic, arrivals
from benchmarks.report import Row, parser, report
from specdec.core.speedup import expected_tokens
from specdec.edge.profile.picture import check_picture

DESIGNS = (SEPARATE, PAIRED, PLAIN)
COMPANY = 16  # sessions of a verifier that is busy


@dataclass(frozen=True, slots=True)
class Bench:
    scalers: Mapping[str, Scaler]
    times: Times
    traffic: Traffic
    prices: Prices
    load: float
    settings: Settings = field(default_factory=Settings)
    seed: int = 1

    def figures(self, outcome: Outcome) -> list[tuple[str, float, str]]:
        return list(figures(outcome, self.prices, wait_target(self.scalers)))

    def run(self, shape: Shape, design: Design) -> Outcome:
        load = arrivals(shape, self.load * generations_a_second(self.times, self.traffic), self.traffic, self.seed)
        outcome = Simulation(design, self.scalers, self.times, load, self.settings, self.seed).run()
        assert outcome.tokens == outcome.asked, "tokens were lost"
        return outcome


def generations_a_second(times: Times, traffic: Traffic) -> float:
    """Of one verifier with COMPANY sessions whose drafts are there at once: the unit of load."""
    context = int(traffic.prompt + traffic.output / 2)
    step = times.target.behind(context)
    rate = max(COMPANY * expected_tokens(traffic.alpha, k) / step(COMPANY * (1 + k)) for k in range(9))
    prefill = traffic.prompt * times.target.estimate(times.budget, 0) / times.budget
    return 1 / (prefill + traffic.mean_output / rate)


def rows_of(trace: str, outcomes: Sequence[Outcome], bench: Bench) -> list[Row]:
    """Each design beside the co-scaled pool."""
    values = {outcome.design: bench.figures(outcome) for outcome in outcomes}
    beside = {measure: value for measure, value, _ in values.get(PAIRED, [])}
    rows = []
    for design, found in values.items():
        for measure, value, unit in found:
            baseline = PAIRED.name if design != PAIRED and measure in beside else ""
            rows.append(
                Row(f"{trace}: {measure}", design.name, value, unit, baseline, beside[measure] if baseline else None)
            )
    return sorted(rows, key=lambda row: [row.measure for row in rows].index(row.measure))


def sweep(bench: Bench, shape: Shape) -> list[Row]:
    """Where separate pools pay and where they do not: one thing at a time, cost and tail of the wait beside the
    co-scaled pool, and the price of a drafter above which separate pools are the cheaper ones."""
    variants = {f"drafters {factor:g} times as slow": replace(bench, times=bench.times.with_draft_cost(factor))
                for factor in (0.25, 1.0, 3.0)}  # fmt: skip
    for alpha, spread in ((0.5, 0.1), (0.8, 0.0), (0.95, 0.0)):
        traffic = replace(bench.traffic, alpha=alpha, alpha_spread=spread)
        variants[f"alpha {alpha:g}, spread {spread:g}"] = replace(bench, traffic=traffic)
    for load in (0.5, 2.0, 10.0):
        variants[f"load of {load:g} verifiers"] = replace(bench, load=load)
    rows: list[Row] = []
    for name, variant in variants.items():
        ours, paired = (variant.run(shape, design) for design in (SEPARATE, PAIRED))
        for measure, value, unit in variant.figures(ours):
            if measure in ("cost of 1,000 tokens", "queue wait of a verification, p95"):
                beside = {m: v for m, v, _ in variant.figures(paired)}[measure]
                rows.append(Row(f"sweep: {measure}", name, value, unit, PAIRED.name, beside))
        for price in (0.05, 0.25, 1.0):
            prices = replace(bench.prices, draft=price)
            costs = [1000 * prices.of(one) / one.tokens for one in (ours, paired)]
            rows.append(Row(f"sweep: cost, drafter at {price:g}", name, costs[0], "pod s", PAIRED.name, costs[1]))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    options = _arguments().parse_args(argv)
    if options.measure:
        from benchmarks.autoscale.real import measured

        write_times(measured(options.target, options.draft, options.dtype), Path(options.measure))
        return
    if options.check:
        from benchmarks.autoscale.real import checked

        times, scalers = read_times(Path(options.times)), read_scalers(Path(options.scalers), SIMULATED, LABELS)
        report("The model beside real processes", checked(times, scalers, options), options.json)
        return
    if options.picture:
        check_picture(Path(options.picture))
    bench = _bench(options)
    rows: list[Row] = []
    for trace in options.traces.split(","):
        shape = SHAPES[trace]
        outcomes = [bench.run(shape, design) for design in DESIGNS]
        rows += rows_of(trace, outcomes, bench)
        if options.picture and trace == "burst":
            from benchmarks.autoscale.picture import draw

            draw(outcomes, wait_target(bench.scalers), bench.prices, Path(options.picture))
    if options.sweep:
        rows += sweep(bench, SHAPES["burst"])
    report(f"Autoscaling, {bench.times.origin}", rows, options.json)


def _bench(options: argparse.Namespace) -> Bench:
    times = read_times(Path(options.times))
    traffic = Traffic(alpha=options.alpha or times.alpha, alpha_spread=options.alpha_spread)
    prices = Prices(options.draft_price, options.coordinator_price)
    scalers = read_scalers(Path(options.scalers), SIMULATED, LABELS)
    settings = Settings(kv_tokens=options.kv_tokens, max_sessions=options.max_sessions)
    return Bench(scalers, times, traffic, prices, options.load, settings, options.seed)


def _arguments() -> argparse.ArgumentParser:
    arguments = parser(__doc__.splitlines()[0] if __doc__ else "")
    add = arguments.add_argument
    add("--traces", default="steady,burst,diurnal", help=f"of {', '.join(SHAPES)}, comma separated")
    add("--scalers", default=str(SCALERS), help="folder of ScaledObjects, or of HPAs and prometheus-adapter's rules")
    add("--times", default=str(DEFAULT), help="table of times, as --measure writes it")
    add("--load", type=float, default=3.0, help="verifiers that the trace keeps busy at its peak")
    add("--alpha", type=float, help="acceptance rate of a draft token; unset: the table's")
    add("--alpha-spread", type=float, default=0.05, help="standard deviation between generations")
    add("--draft-price", type=float, default=0.5, help="of a drafter's pod, in that of a verifier's")
    add("--coordinator-price", type=float, default=0.25, help="of a coordinator's pod")
    add("--kv-tokens", type=int, default=32768, help="of a verifier")
    add("--max-sessions", type=int, default=1024, help="of a verifier; more are refused")
    add("--seed", type=int, default=1)
    add("--sweep", action="store_true", help="also: where separate pools pay and where they do not")
    add("--picture", metavar="FILE", help="replicas and queue wait along the burst")
    add("--measure", metavar="FILE", help="measure real processes on this machine instead, and write the table there")
    add("--check", action="store_true", help="compare the model with real processes on this machine instead")
    add("--target", default="smollm2", help="measured: the target model")
    add("--draft", default="self:int8", help="measured: the drafter, as `specdec up` takes it")
    add("--dtype", default="float32", help="measured: of the target")
    return arguments


if __name__ == "__main__":
    main()
