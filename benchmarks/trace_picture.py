"""One real request's trace across three processes, drawn: where the time of its cycles goes.

    python -m benchmarks.trace_picture --plot FILE [--model smollm2] [--draft self:int8] [--json FILE]

A cluster of real processes sends its spans by OTLP to a receiver in this one. The second of two requests is drawn: as a
whole, two cycles of it, and the seam between these two, where everything that is no forward lies."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.models import prepared
from benchmarks.overhead import environment
from benchmarks.report import Row, commit, parser, percentile, report
from benchmarks.traced_cycles import Bar, TracedCycle, TracedRequest, traced_request
from specdec.edge.client import Client, GenerateFields
from specdec.edge.cluster import Cluster, ClusterSpec
from specdec.edge.commands.demo import COPY
from specdec.edge.draft_entries import draft_entries
from specdec.edge.profile.picture import check_picture
from tests.otlp_receiver import OtlpReceiver

COLOURS = {
    "cycle": "#e3e3e3", "draft": "#9ecae1", "verify": "#fdae6b", "accept": "#74c476", "commit": "#9e9ac8",
    "network": "white",
}  # fmt: skip
LANES = ("verifier", "drafter", "coordinator:\ncommit", "coordinator:\nphases", "coordinator:\ncycles")
VERIFIER, DRAFTER, COMMIT, PHASES, CYCLES = range(5)
FIRST = 4  # of the two cycles that are drawn large: prompt and warm-up are behind it


async def recorded(model: str, draft: str) -> TracedRequest:
    with ExitStack() as exits:
        logs = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        receiver = exits.enter_context(OtlpReceiver())
        exits.enter_context(environment("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", receiver.endpoint))
        spec = ClusterSpec(model, draft=await draft_entries(draft, model))
        async with (
            Cluster(spec, logs, lambda line: print(f"  {line}", flush=True)) as running,
            Client(running.address) as client,
        ):
            fields: GenerateFields = {"chat": [{"role": "user", "content": COPY}], "max_tokens": 48}
            fields |= {"temperature": 0.0, "num_draft_tokens": 4, "drafter": draft.partition(":")[0]}
            for _ in range(2):
                async for _ in client.generate(**fields):
                    pass
        return traced_request(receiver.spans)  # processes that have ended have sent all they had


def rows_of(request: TracedRequest) -> list[Row]:
    later = request.cycles[1:]
    proposals = [cycle.propose for cycle in later if cycle.propose is not None]
    return [
        Row("cycles", "one request", len(request.cycles), ""),
        Row("tokens per cycle", "one request", sum(c.emitted for c in request.cycles) / len(request.cycles), ""),
        Row("cycle p50", "from the second", percentile([c.whole.length for c in later], 0.5), "ms"),
        Row("draft.propose p50", "drafter", percentile([p.length for p in proposals], 0.5), "ms"),
        Row("target.forward p50", "verifier", percentile([c.forward.length for c in later], 0.5), "ms"),
        Row("accept p50", "coordinator", percentile([c.phases["accept"].length for c in later], 0.5), "ms"),
        Row("commit p50", "coordinator", percentile([c.phases["commit"].length for c in later], 0.5), "ms"),
        Row("network share", "from the second", 100 * request.network_share, "%"),
    ]


def draw(request: TracedRequest, title: str, file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(14, 13), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14)
    whole, large, seam = figure.subplots(3, 1)
    one, other = request.cycles[FIRST - 1 : FIRST + 1]
    _draw_cycles(whole, request.cycles, Bar(0.0, request.length))
    whole.set_title(f"The whole request: {len(request.cycles)} cycles; the first computes the prompt")
    _draw_cycles(large, (one, other), Bar(one.whole.begin, other.whole.end))
    _annotate_cycles(large, one, other)
    begin, end = one.forward.end, other.propose.begin if other.propose else other.forward.begin
    near = Bar(begin - 0.3 * (end - begin), end + 0.3 * (end - begin))
    _draw_cycles(seam, (one, other), near)
    _annotate_seam(seam, one, other)
    for axes, span in ((large, Bar(one.whole.begin, other.whole.end)), (seam, near)):
        axes.set_xlim(span.begin, span.end)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=6, fontsize=11)
    figure.savefig(file, dpi=100)


def _legend() -> list[Any]:
    from matplotlib.patches import Patch

    def patch(name: str) -> Any:
        return Patch(
            facecolor=COLOURS[name], edgecolor="black", hatch="////" if name == "network" else None, label=name
        )

    return [patch(name) for name in COLOURS]


def _draw_cycles(axes: Any, cycles: Sequence[TracedCycle], shown: Bar) -> None:
    def bar(lane: int, span: Bar, name: str, hatch: str | None = None) -> None:
        axes.barh(
            lane, span.length, left=span.begin, height=0.66, color=COLOURS[name], edgecolor="black", linewidth=0.6,
            hatch=hatch,
        )  # fmt: skip

    for cycle in cycles:
        bar(CYCLES, cycle.whole, "cycle")
        for name, phase in cycle.phases.items():
            bar(COMMIT if name == "commit" else PHASES, phase, name)
        if cycle.propose is not None:
            bar(DRAFTER, cycle.propose, "draft")
        bar(VERIFIER, cycle.forward, "verify")
        lanes = [DRAFTER, DRAFTER, VERIFIER, VERIFIER] if cycle.propose is not None else [VERIFIER, VERIFIER]
        for lane, way in zip(lanes, cycle.ways, strict=True):
            bar(lane, way, "network", "////")
    axes.set_yticks(range(len(LANES)), LANES, fontsize=11)
    axes.set_ylim(-0.6, len(LANES) - 0.1)
    axes.set_xlim(shown.begin, shown.end)
    axes.set_xlabel("milliseconds from the request's arrival", fontsize=11)


def _inside(axes: Any, lane: int, span: Bar, text: str) -> None:
    axes.text((span.begin + span.end) / 2, lane, text, ha="center", va="center", fontsize=11)


def _annotate_cycles(axes: Any, one: TracedCycle, other: TracedCycle) -> None:
    axes.set_title(f"Two cycles of it, {one.number} and {other.number}")
    for cycle in (one, other):
        length = f"{cycle.whole.length:.1f} ms, network {100 * cycle.network_share:.1f} % of it"
        drafts = f"{cycle.drafted} drafted, {cycle.accepted} accepted, {cycle.emitted} emitted"
        _inside(axes, CYCLES, cycle.whole, f"specdec.cycle {cycle.number}: {length}\n{drafts}")
        for name in ("draft", "verify"):
            _inside(axes, PHASES, cycle.phases[name], f"specdec.{name}\n{cycle.phases[name].length:.1f} ms")
        if cycle.propose is not None:
            _inside(axes, DRAFTER, cycle.propose, f"draft.propose\n{cycle.propose.length:.1f} ms")
        _inside(axes, VERIFIER, cycle.forward, f"target.forward\n{cycle.forward.length:.1f} ms")


def _annotate_seam(axes: Any, one: TracedCycle, other: TracedCycle) -> None:
    axes.set_title("The seam between the two, magnified: everything that is no forward")

    def beside(lane: int, span: Bar, text: str, *, left: bool = False) -> None:
        x, way = (span.begin, -1) if left else (span.end, 1)
        axes.annotate(
            f"{text}, {span.length:.2f} ms", (x, lane), xytext=(6 * way, 0), textcoords="offset points", fontsize=11,
            ha="right" if left else "left", va="center",
        )  # fmt: skip

    accept, committed = one.phases["accept"], one.phases["commit"]
    beside(VERIFIER, one.ways[-1], "the verification's way back")
    axes.annotate(
        f"specdec.accept, {accept.length:.2f} ms", ((accept.begin + accept.end) / 2, PHASES + 0.5), fontsize=11,
        ha="center", va="center",
    )  # fmt: skip
    beside(COMMIT, committed, "beside the next draft: specdec.commit,\nat whose end the tokens go out", left=True)
    if other.propose is not None:
        beside(DRAFTER, other.ways[0], "the next request's way to the drafter", left=True)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0], plot=True)
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--draft", default="self:int8", help="as for `specdec up`")
    given = arguments.parse_args(argv)
    if given.plot:
        check_picture(Path(given.plot))
    request = asyncio.run(recorded(prepared(given.model), given.draft))
    if given.plot:
        title = (
            f"One request's trace, {Path(given.model).name} with drafts by {given.draft}, three processes on one host"
        )
        draw(request, f"{title} ({commit()})", Path(given.plot))
    report("one request's trace", rows_of(request), given.json)


if __name__ == "__main__":
    main()
