"""One request's trace, as it has to look whoever exported its spans from wherever (DESIGN, Telemetry)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specdec.edge.telemetry import (
    SESSION_ID,
    SPAN_ACCEPT,
    SPAN_COMMIT,
    SPAN_CYCLE,
    SPAN_DRAFT,
    SPAN_FORWARD,
    SPAN_GENERATE,
    SPAN_PROPOSE,
    SPAN_VERIFY,
)
from tests.otlp_receiver import ReceivedSpan

COORDINATOR, DRAFT, TARGET = "specdec-coordinator", "specdec-draft", "specdec-target"
# span: (who sends it, the span that it stands under)
SHAPE = {
    SPAN_CYCLE: (COORDINATOR, SPAN_GENERATE),
    SPAN_DRAFT: (COORDINATOR, SPAN_CYCLE),
    SPAN_VERIFY: (COORDINATOR, SPAN_CYCLE),
    SPAN_ACCEPT: (COORDINATOR, SPAN_CYCLE),
    SPAN_COMMIT: (COORDINATOR, SPAN_CYCLE),
    SPAN_PROPOSE: (DRAFT, SPAN_DRAFT),
    SPAN_FORWARD: (TARGET, SPAN_VERIFY),
}


def of_session(spans: Sequence[ReceivedSpan], session_id: str) -> list[ReceivedSpan]:
    """The spans of the trace whose root is that session's request."""
    ids = {s.trace_id for s in spans if s.attributes.get(SESSION_ID) == session_id}
    return [s for s in spans if s.trace_id in ids]


def faults(spans: Sequence[ReceivedSpan], cycles: int) -> list[str]:
    """What is wrong with a trace of so many cycles, in sentences."""
    roots = [s for s in spans if _name(s) == SPAN_GENERATE]
    if len(roots) != 1 or roots[0].service != COORDINATOR:
        return [f"{len(roots)} spans `{SPAN_GENERATE}` of one request"]
    by_id = {s.span_id: s for s in spans}
    found = [f"no span `{name}`" for name in SHAPE if not any(s.name == name for s in spans)]
    for span in spans:
        if span.name in SHAPE:
            service, above = SHAPE[span.name]
            parent = by_id.get(span.parent_id)
            if span.service != service:
                found.append(f"`{span.name}` comes from {span.service}")
            if parent is None or _name(parent) != above:
                found.append(f"`{span.name}` stands under `{parent and parent.name}`, not `{above}`")
    counts = Counter(s.name for s in spans)
    for name in (SPAN_CYCLE, SPAN_FORWARD):
        if counts[name] != cycles:
            found.append(f"{counts[name]} spans `{name}` for {cycles} cycles")
    return found


def shown(spans: Sequence[ReceivedSpan]) -> str:
    """A line for each kind of span."""
    counts = Counter((s.service, _name(s)) for s in spans)
    lines = (f"    {service:20} {name:20} {count}" for (service, name), count in sorted(counts.items()))
    return "\n".join(lines)


def _name(span: ReceivedSpan) -> str:
    """The root is called after its model, too."""
    return span.name.partition(" ")[0]
