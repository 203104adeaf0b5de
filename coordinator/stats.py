"""What one generation did, counted once, in vLLM's meanings."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos import generation_pb2


@dataclass(slots=True)
class Stats:
    """Mutable, owned by one generation. accepted <= draft_tokens always; emitted = accepted + cycles - cut."""

    cycles: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    cut_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    reached_per_position: list[int] = field(default_factory=list)
    cycles_per_drafter: dict[str, int] = field(default_factory=dict)
    alpha_sum: float = 0.0
    alpha_count: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    cached_tokens: int = 0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    def cycle(self, drafter: str, draft_tokens: int, reached: int, accepted: int, alphas: tuple[float, ...]) -> None:
        """One cycle was judged: `accepted` of `draft_tokens` of `drafter` ("": no draft) survived; at `reached` depths
        one was judged."""
        assert accepted <= draft_tokens, "more draft tokens accepted than drafted"
        assert accepted <= reached <= accepted + 1, "the walk judges at most one depth beyond its end"
        self.cycles += 1
        self.drafts += draft_tokens > 0
        self.draft_tokens += draft_tokens
        self.accepted_tokens += accepted
        _count_positions(self.accepted_per_position, accepted)
        _count_positions(self.reached_per_position, reached)
        self.cycles_per_drafter[drafter] = self.cycles_per_drafter.get(drafter, 0) + 1
        self.alpha_sum += sum(alphas)
        self.alpha_count += len(alphas)

    def fell_back(self, cause: str) -> None:
        self.fallbacks[cause] = self.fallbacks.get(cause, 0) + 1

    def emitted(self, count: int, now: float) -> None:
        if count and not self.emitted_tokens:
            self.first_token = now
        self.emitted_tokens += count
        self.last_token = now

    def message(self, bytes_sent: int, bytes_received: int) -> generation_pb2.DraftStats:
        return generation_pb2.DraftStats(
            cycles=self.cycles,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            accepted_per_position=self.accepted_per_position,
            reached_per_position=self.reached_per_position,
            cycles_per_drafter=self.cycles_per_drafter,
            exact_alpha_sum=self.alpha_sum,
            exact_alpha_count=self.alpha_count,
            fallbacks=self.fallbacks,
            cut_tokens=self.cut_tokens,
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            commit_seconds=self.commit_seconds,
            decode_seconds=self.last_token - self.first_token if self.emitted_tokens else 0.0,
            time_to_first_token=self.first_token - self.started if self.emitted_tokens else 0.0,
            bytes_sent=bytes_sent,
            bytes_received=bytes_received,
        )


def _count_positions(counts: list[int], depth: int) -> None:
    """One more at each of the first `depth` positions."""
    counts.extend([0] * (depth - len(counts)))
    for position in range(depth):
        counts[position] += 1
