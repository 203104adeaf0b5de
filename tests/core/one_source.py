"""A world of one draft source with known chances and times, in which a planner lives in virtual seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from specdec.core.planner import Planner, observe, plan
from specdec.core.source_record import CycleOutcome

MAX_K = 12


@dataclass
class World:
    """Seconds of virtual time. chance(i): that position i is accepted once reached; comes: how many of k
    arrive."""

    chance: Callable[[int], float]
    draft: float = 1.0
    verify: Callable[[int], float] = lambda rows: 10.0
    draft_network: float = 0.0
    verify_network: float = 0.0
    comes: Callable[[int, np.random.Generator], int] = lambda k, rng: k
    exact: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def cycle(self, k: int, batch: int = 1) -> CycleOutcome:
        n = self.comes(k, self.rng)
        accepted, alphas = 0, []
        while accepted < n:
            alphas.append(self.chance(accepted))
            if self.rng.random() >= alphas[-1]:
                break
            accepted += 1
        return CycleOutcome(
            asked=k,
            depth=n,
            rows=n + 1,
            accepted=accepted,
            draft_seconds=n * self.draft if k else None,
            draft_network=self.draft_network if k else 0.0,
            verify_seconds=self.verify(batch * (n + 1)),
            verify_network=self.verify_network,
            batch=batch,
            alphas=tuple(alphas) if self.exact else (),
        )


def seconds(cycle: CycleOutcome) -> float:
    assert cycle.verify_seconds is not None
    return (cycle.draft_seconds or 0.0) + cycle.draft_network + cycle.verify_seconds + cycle.verify_network


def live(
    world: World, cycles: int, planner: Planner | None = None, k: int | None = None
) -> tuple[Planner, list[int], float]:
    """The planner afterwards, the k of each cycle, and tokens per second; k given: fixed."""
    planner, ks, tokens, spent = planner or Planner(), [], 0, 0.0
    for _ in range(cycles):
        ks.append(plan(planner, MAX_K) if k is None else k)
        outcome = world.cycle(ks[-1])
        tokens, spent = tokens + outcome.accepted + 1, spent + seconds(outcome)
        planner = observe(planner, outcome)
    return planner, ks, tokens / spent if spent else 0.0
