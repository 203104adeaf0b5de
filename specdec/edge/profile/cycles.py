"""What one chunk of an answer tells of its cycle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protos.generation_pb2 import TOKEN_ORIGIN_BONUS, TOKEN_ORIGIN_REPLAYED, Chunk


@dataclass(frozen=True, slots=True)
class CycleSample:
    """nodes, depth, accepted: of the draft that was judged; bonus: its path was accepted to a leaf. tokens: emitted.
    alphas: exact, one per judged depth, where they were measured.

    seconds: of the whole cycle; draft_seconds, verify_seconds: queue and compute as the replicas account for them;
    draft_network, verify_network: what else those phases took."""

    drafter: str
    nodes: int
    depth: int
    accepted: int
    bonus: bool
    tokens: int
    alphas: tuple[float, ...]
    seconds: float
    draft_seconds: float
    verify_seconds: float
    draft_network: float = 0.0
    verify_network: float = 0.0

    @property
    def reached(self) -> int:
        """Depths at which a draft token was judged."""
        return min(self.depth, self.accepted + (not self.bonus))


def sample_of(chunk: Chunk) -> CycleSample:
    timing = chunk.timing
    draft = (timing.draft_queue_us + timing.draft_compute_us) / 1e6
    verify = (timing.verify_queue_us + timing.verify_compute_us) / 1e6
    return CycleSample(
        drafter=chunk.drafter,
        nodes=chunk.num_draft_tokens,
        depth=chunk.draft_depth,
        accepted=chunk.num_accepted_tokens,
        bonus=bool(chunk.tokens) and chunk.tokens[-1].origin == TOKEN_ORIGIN_BONUS,
        tokens=len(chunk.tokens),
        alphas=tuple(chunk.exact_alphas),
        seconds=timing.cycle_us / 1e6,
        draft_seconds=draft,
        verify_seconds=verify,
        draft_network=max(0.0, timing.draft_us / 1e6 - draft),
        verify_network=max(0.0, timing.verify_us / 1e6 - verify),
    )


def steady(chunks: Iterable[Chunk]) -> tuple[CycleSample, ...]:
    """All cycles of an answer but the first, which computes the prompt, and what was replayed."""
    cycles = [c for c in chunks if not (c.tokens and c.tokens[0].origin == TOKEN_ORIGIN_REPLAYED)]
    return tuple(sample_of(chunk) for chunk in cycles[1:])
