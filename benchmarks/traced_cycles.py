"""One request's spans, as a collector has them, put together into its cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.edge import telemetry as names
from tests.otlp_receiver import ReceivedSpan

MS = 1e6  # nanoseconds
PARTS = {
    names.SPAN_DRAFT: "draft",
    names.SPAN_VERIFY: "verify",
    names.SPAN_ACCEPT: "accept",
    names.SPAN_COMMIT: "commit",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """Milliseconds from the beginning of the request."""

    begin: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class TracedCycle:
    """phases: by name, as the coordinator saw them. propose, forward: of the replicas that served draft and verify; no
    propose where nobody was asked."""

    number: int
    drafted: int
    accepted: int
    emitted: int
    whole: Bar
    phases: dict[str, Bar]
    propose: Bar | None
    forward: Bar

    @property
    def ways(self) -> list[Bar]:
        """There and back to each replica: what a phase took beyond the replica's own span."""
        pairs = [(self.phases["draft"], self.propose), (self.phases["verify"], self.forward)]
        return [
            way
            for phase, remote in pairs
            if remote is not None
            for way in (Bar(phase.begin, remote.begin), Bar(remote.end, phase.end))
        ]

    @property
    def network_share(self) -> float:
        return sum(way.length for way in self.ways) / self.whole.length


@dataclass(frozen=True, slots=True)
class TracedRequest:
    length: float  # milliseconds
    cycles: list[TracedCycle]

    @property
    def network_share(self) -> float:
        """Of all cycles but the first, which computes the prompt."""
        later = self.cycles[1:]
        return sum(way.length for c in later for way in c.ways) / sum(c.whole.length for c in later)


def traced_request(spans: Sequence[ReceivedSpan]) -> TracedRequest:
    """Of the request that began last among them."""
    root = max((span for span in spans if span.name == names.SPAN_GENERATE), key=lambda span: span.start_ns)
    children: dict[str, list[ReceivedSpan]] = {}
    for span in spans:
        if span.trace_id == root.trace_id:
            children.setdefault(span.parent_id, []).append(span)

    def bar(span: ReceivedSpan) -> Bar:
        return Bar((span.start_ns - root.start_ns) / MS, (span.end_ns - root.start_ns) / MS)

    def cycle(span: ReceivedSpan) -> TracedCycle:
        phases = {PARTS[child.name]: child for child in children[span.span_id]}
        asked = {
            child.name: bar(child) for phase in ("draft", "verify") for child in children.get(phases[phase].span_id, [])
        }
        return TracedCycle(
            number=span.attributes[names.CYCLE],
            drafted=span.attributes[names.NUM_DRAFT_TOKENS],
            accepted=span.attributes[names.NUM_ACCEPTED_TOKENS],
            emitted=span.attributes[names.NUM_EMITTED_TOKENS],
            whole=bar(span),
            phases={name: bar(phase) for name, phase in phases.items()},
            propose=asked.get(names.SPAN_PROPOSE),
            forward=asked[names.SPAN_FORWARD],
        )

    found = [cycle(span) for span in children[root.span_id] if span.name == names.SPAN_CYCLE]
    return TracedRequest(bar(root).length, sorted(found, key=lambda one: one.number))
