"""One cycle's outcome, and what it tells the planner, the metrics and the trace."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.drafting import Drafted
from coordinator.stopping import Emission
from coordinator.verifying import Verified
from specdec.core.acceptance import Acceptance
from specdec.core.planner import CycleOutcome
from specdec.edge import telemetry as names
from specdec.edge.messages import Timing
from specdec.edge.telemetry import Attributes, CoordinatorMetrics


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle adds to the session, on its way to the store and then to the client.

    number: from 1; base: context length before it; asked: draft tokens asked for; drafter: who was asked; traceparent:
    of its span; seconds: from the end of the cycle before it. alphas: exact alpha by judged position, () where it means
    nothing (greedy, coupled)."""

    number: int
    base: int
    asked: int
    drafter: str
    drafted: Drafted
    verified: Verified
    acceptance: Acceptance
    emission: Emission
    alphas: tuple[float, ...]
    traceparent: str
    seconds: float

    @property
    def num_draft_tokens(self) -> int:
        return self.drafted.draft.tree.num_draft_tokens

    @property
    def num_accepted(self) -> int:
        return len(self.acceptance.nodes)

    def outcome(self) -> CycleOutcome:
        """A prompt or a retry measures nothing for the next cycle. Waiting for a draft that did not come does: it is
        what asking costs."""
        tree, timing = self.drafted.draft.tree, self.verified.timing
        usual = self.number > 1 and self.verified.attempts == 1
        verify = _compute_seconds(timing)
        draft = _compute_seconds(self.drafted.timing)
        return CycleOutcome(
            asked=self.asked,
            depth=int(tree.depths.max()),
            rows=tree.num_nodes,
            accepted=self.num_accepted,
            draft_seconds=draft if usual else None,
            verify_seconds=verify if usual else None,
            draft_network=max(0.0, self.drafted.seconds - draft),
            verify_network=max(0.0, self.verified.seconds - verify),
            batch=max(1, timing.batch_size),
            batch_rows=timing.batch_rows,
            alphas=self.alphas,
            drafter=self.drafter,
            context=self.base,
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
            names.NETWORK_US: int(1e6 * max(0.0, self.verified.seconds - _compute_seconds(timing))),
        }

    def record(self, metrics: CoordinatorMetrics, accept_seconds: float) -> None:
        metrics.cycles.add()
        if self.num_draft_tokens:
            metrics.num_drafts.add()
            metrics.num_draft_tokens.add(self.num_draft_tokens)
            metrics.num_accepted_tokens.add(self.num_accepted)
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
        if self.asked:
            metrics.phase_seconds.record(self.drafted.seconds, phase="draft")
        metrics.phase_seconds.record(self.verified.seconds, phase="verify")
        metrics.phase_seconds.record(accept_seconds, phase="accept")
        metrics.cycle_seconds.record(self.seconds)


def _compute_seconds(timing: Timing) -> float:
    """What the replica accounts for itself: waiting and computing."""
    return (timing.queue_us + timing.compute_us) / 1e6
