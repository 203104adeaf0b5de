"""Whether a drafter's acceptance still is what its profile says.

Judged positions are averaged with weights that fade over MEMORY of them. Once at least LEAST were seen, a mean that is
more than SAG below the expected one has sagged; it has recovered when it is back within half of that. Over a fading
memory of 500 positions the standard error would be at most 0.016 if they were independent. They are not quite, and
prompts differ, so SAG is six times that: it takes another kind of text, another target or drafter, not bad luck."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

GREEDY, SAMPLED = "greedy", "sampled"
MEMORY = 500.0  # positions
LEAST = 200  # positions before anything is said
SAG = 0.1


@dataclass(frozen=True, slots=True)
class Drift:
    """expected: the profile's alpha. total, weight: of the faded sum; seen: positions; sagging: the present verdict."""

    expected: float
    total: float = 0.0
    weight: float = 0.0
    seen: int = 0
    sagging: bool = False

    @property
    def difference(self) -> float | None:
        """Live minus expected; None until enough was seen."""
        return self.total / self.weight - self.expected if self.seen >= LEAST else None


def observed(drift: Drift, values: Iterable[float]) -> Drift:
    """After more judged positions: of each its exact alpha, or 1.0 for an accepted token and 0.0 for a rejected one."""
    total, weight, seen = drift.total, drift.weight, drift.seen
    for value in values:
        total, weight, seen = total * (1 - 1 / MEMORY) + value, weight * (1 - 1 / MEMORY) + 1, seen + 1
    drift = replace(drift, total=total, weight=weight, seen=seen)
    if drift.difference is None:
        return drift
    return replace(drift, sagging=drift.difference < -(SAG / 2 if drift.sagging else SAG))
