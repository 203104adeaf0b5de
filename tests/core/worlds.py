"""Worlds of draft sources with known laws and times, in which planners live: virtual seconds, fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from specdec.core.planner import Planner, choose, observe
from specdec.core.source_record import CycleOutcome, Offer
from specdec.core.speedup import expected_tokens

LIMIT = 16
STEP = 10.0  # seconds of a target step; drafters are priced against it


def target(rows: float) -> float:
    return STEP + 0.1 * rows


@dataclass(frozen=True)
class Source:
    """alpha: that a draft token is accepted once reached; draft: seconds a token; trip: on the way to the replica.
    accepts: nodes of a tree of k nodes that are accepted, in place of alpha."""

    alpha: float = 0.0
    draft: float = 0.0
    trip: float = 0.0
    matched: int = 0
    accepts: Callable[[int, np.random.Generator], tuple[int, ...]] | None = None

    def offer(self, name: str) -> Offer:
        return Offer(
            name,
            LIMIT if self.accepts is None else 60,
            self.accepts is not None,
            self.matched,
            local=bool(self.matched),
        )

    def cycle(self, name: str, k: int, rng: np.random.Generator) -> CycleOutcome:
        nodes = self.accepts(k, rng) if self.accepts else tuple(range(1, _run(self.alpha, k, rng) + 1))
        return CycleOutcome(
            asked=k,
            depth=k if self.accepts is None else max(1, k // 4),
            rows=k + 1,
            accepted=len(nodes),
            draft_seconds=k * self.draft,
            draft_network=self.trip,
            verify_seconds=target(k + 1),
            drafter=name,
            tree=self.accepts is not None,
            nodes=nodes,
            local=bool(self.matched),
            paid=k * self.draft + self.trip,
        )

    def rate(self, k: int) -> float:
        """Tokens per second of a chain of k."""
        return expected_tokens(self.alpha, k) / (k * self.draft + self.trip * (k > 0) + target(k + 1))


def _run(alpha: float, k: int, rng: np.random.Generator) -> int:
    missed = np.flatnonzero(rng.random(k) >= alpha)
    return int(missed[0]) if len(missed) else k


PLAIN = CycleOutcome(asked=0, depth=0, rows=1, accepted=0, verify_seconds=target(1))
World = Mapping[str, Source]


@dataclass
class Life:
    """One session: what it chose, and tokens and seconds so far."""

    planner: Planner
    rng: np.random.Generator
    chosen: list[tuple[str, int]] = field(default_factory=list)

    def live(self, world: Callable[[int], World], cycles: int, limit: int = 60) -> float:
        """Tokens per second over so many cycles."""
        tokens, spent = 0, 0.0
        for number in range(cycles):
            sources = world(number)
            offer, k = choose(self.planner, [source.offer(name) for name, source in sources.items()], limit)
            outcome = PLAIN if offer is None else sources[offer.source].cycle(offer.source, k, self.rng)
            self.chosen.append((offer.source if offer else "", k))
            assert outcome.verify_seconds is not None
            tokens += outcome.accepted + 1
            spent += outcome.verify_seconds + outcome.paid
            self.planner = observe(self.planner, outcome)
        return tokens / spent

    def share(self, name: str, last: int = 100) -> float:
        return sum(source == name for source, _ in self.chosen[-last:]) / last


def life(seed: int = 0, planner: Planner | None = None) -> Life:
    return Life(planner or Planner(), np.random.default_rng(seed))


def mean_rate(world: World, cycles: int, seeds: int = 6, **options: int) -> float:
    return float(np.mean([life(seed).live(lambda n: world, cycles, **options) for seed in range(seeds)]))


PLAIN_RATE = 1 / target(1)
GOOD, FAIR, BAD = Source(0.85, 1.0), Source(0.6, 0.5), Source(0.1, 2.0)
COPY, PROSE = Source(0.97, matched=8), Source(0.15, matched=2)


def best_rate(*sources: Source) -> float:
    return max(source.rate(k) for source in sources for k in range(LIMIT + 1))
