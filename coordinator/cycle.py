"""One cycle's outcome, and what it tells the planner, the metrics and the trace."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.drafting import NO_TIMING, Drafted
from coordinator.sources import Ask
from coordinator.stopping import Emission
from coordinator.verifying import Verified
from specdec.core.acceptance import Acceptance
from specdec.core.source_record import CycleOutcome
from specdec.edge import telemetry as names
from specdec.edge.messages import Timing
from specdec.edge.telemetry import Attributes, CoordinatorMetrics

CAUGHT_UP = 64  # context tokens that a replica computes in a usual cycle at most


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle adds to the session, on its way to the store and then to the client.

    number: from 1; base: context length before it; ask: for whose draft, and how long; traceparent:
    of its span; seconds: from the end of the cycle before it; accept_seconds: of its last phase. alphas: exact alpha by
    judged position, () where it means nothing (greedy, coupled)."""

    number: int
    base: int
    ask: Ask
    drafted: Drafted
    verified: Verified
    acceptance: Acceptance
    emission: Emission
    alphas: tuple[float, ...]
    traceparent: str
    seconds: float
    accept_seconds: float

    @property
    def num_draft_tokens(self) -> int:
        return self.drafted.draft.tree.num_draft_tokens

    @property
    def judged_drafter(self) -> str:
        """Whose draft was judged, which a fallback makes another than who was asked; "" without a draft."""
        return self.drafted.draft.drafter if self.num_draft_tokens else ""

    @property
    def num_accepted(self) -> int:
        return len(self.acceptance.nodes)

    @property
    def num_reached(self) -> int:
        """Depths at which a draft token was judged: those accepted, and one more unless the path ended at a leaf."""
        last = self.acceptance.nodes[-1] if self.acceptance.nodes else 0
        return self.num_accepted + bool(self.drafted.draft.tree.children[last])

    def outcome(self) -> CycleOutcome:
        """A prompt or a retry measures nothing for the next cycle, nor does a context that had to be computed anew.
        Waiting for a draft that did not come does: it is what asking costs."""
        tree, timing = self.drafted.draft.tree, self.verified.timing
        usual = self.number > 1 and self.verified.attempts == 1 and timing.computed_tokens <= CAUGHT_UP
        verify = _compute_seconds(timing)
        draft = _compute_seconds(self.drafted.timing)
        caught_up = self.drafted.timing.computed_tokens <= CAUGHT_UP
        return CycleOutcome(
            asked=self.ask.k,
            depth=int(tree.depths.max()),
            rows=tree.num_nodes,
            accepted=self.num_accepted,
            draft_seconds=draft if usual and caught_up else None,
            verify_seconds=verify if usual else None,
            verify_queue=timing.queue_us / 1e6,
            draft_network=_network_seconds(self.drafted.seconds, self.drafted.timing),
            verify_network=_network_seconds(self.verified.seconds, timing),
            batch=max(1, timing.batch_size),
            batch_rows=timing.batch_rows,
            draft_batch=max(1, self.drafted.timing.batch_size),
            alphas=self.acceptance.exact_chances if self.alphas else (),
            drafter=self.ask.source,
            context=self.base,
            tree=self.ask.tree,
            nodes=self.acceptance.nodes,
            local=self.ask.local,
            paid=self.drafted.seconds,
        )

    def attributes(self) -> Attributes:
        timing = self.verified.timing
        return {
            names.CYCLE: self.number,
            names.CONTEXT_LENGTH: self.base,
            names.NUM_DRAFT_TOKENS: self.num_draft_tokens,
            names.NUM_ACCEPTED_TOKENS: self.num_accepted,
            names.NUM_EMITTED_TOKENS: len(self.emission.token_ids),
            names.DRAFTER: self.drafted.draft.drafter,
            names.FALLBACK: self.drafted.fallback or "",
            names.REPLICA_ID: self.verified.replica_id,
            names.BATCH_SIZE: timing.batch_size,
            names.QUEUE_US: timing.queue_us,
            names.COMPUTE_US: timing.compute_us,
            names.NETWORK_US: int(1e6 * _network_seconds(self.verified.seconds, timing)),
        }

    def record(self, metrics: CoordinatorMetrics) -> None:
        metrics.cycles.add()
        if self.num_draft_tokens:
            metrics.num_drafts.add()
            metrics.num_draft_tokens.add(self.num_draft_tokens)
            metrics.num_accepted_tokens.add(self.num_accepted)
            self._record_drafter(metrics)
        for position in range(self.num_accepted):
            metrics.num_accepted_tokens_per_pos.add(position=position)
        if self.emission.cut_tokens:
            metrics.cut_tokens.add(self.emission.cut_tokens)
        if self.drafted.wasted:
            metrics.wasted_draft_tokens.add(self.drafted.wasted)
        if self.drafted.fallback is not None:
            metrics.fallbacks.add(cause=self.drafted.fallback)
        for alpha in self.alphas:
            metrics.exact_alpha.record(alpha)
        if self.ask.k:
            metrics.phase_seconds.record(self.drafted.seconds, phase="draft")
        metrics.phase_seconds.record(self.verified.seconds, phase="verify")
        metrics.phase_seconds.record(self.accept_seconds, phase="accept")
        metrics.cycle_seconds.record(self.seconds)
        self._record_network(metrics)

    def _record_drafter(self, metrics: CoordinatorMetrics) -> None:
        """Nothing accepted is recorded too: a drafter that never is has its series, and can be seen to be at 0."""
        drafter = self.judged_drafter
        metrics.drafter_drafts.add(drafter=drafter)
        metrics.drafter_draft_tokens.add(self.num_draft_tokens, drafter=drafter)
        metrics.drafter_accepted_tokens.add(self.num_accepted, drafter=drafter)
        metrics.drafter_judged_tokens.add(self.num_reached, drafter=drafter)
        if self.num_reached > self.num_accepted:
            metrics.num_rejected_tokens_per_pos.add(position=self.num_accepted)

    def _record_network(self, metrics: CoordinatorMetrics) -> None:
        """Of phases in which one replica answered: no draft of the coordinator's own, no time lost to a failover."""
        for phase, taken, timing, whole in (
            ("draft", self.drafted.seconds, self.drafted.timing, self.drafted.timing is not NO_TIMING),
            ("verify", self.verified.seconds, self.verified.timing, self.verified.attempts == 1),
        ):
            if whole:
                metrics.network_seconds.record(_network_seconds(taken, timing), phase=phase)


def _compute_seconds(timing: Timing) -> float:
    """What the replica accounts for itself: waiting and computing."""
    return (timing.queue_us + timing.compute_us) / 1e6


def _network_seconds(seconds: float, timing: Timing) -> float:
    return max(0.0, seconds - _compute_seconds(timing))
