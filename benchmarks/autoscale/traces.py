"""Load: generations with their arrivals, drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Generation:
    """arrives: seconds from the start; prompt, output: tokens; alpha: how well its text can be drafted."""

    arrives: float
    prompt: int
    output: int
    alpha: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What generations are like. Lengths are log-normal around their medians (`spread`: of their logarithms), alpha is
    beta distributed around its mean: code is easy to draft, prose is not."""

    prompt: float = 200.0
    output: float = 150.0
    spread: float = 0.6
    alpha: float = 0.8
    alpha_spread: float = 0.1
    longest: int = 2000

    @property
    def mean_output(self) -> float:
        return self.output * math.exp(self.spread**2 / 2)

    def generation(self, arrives: float, rng: np.random.Generator) -> Generation:
        prompt, output = (
            int(min(max(1.0, rng.lognormal(math.log(median), self.spread)), self.longest))
            for median in (self.prompt, self.output)
        )
        return Generation(arrives, prompt, output, self._alpha(rng))

    def _alpha(self, rng: np.random.Generator) -> float:
        if not self.alpha_spread:
            return self.alpha
        weight = max(1e-3, self.alpha * (1 - self.alpha) / self.alpha_spread**2 - 1)
        return float(min(0.99, rng.beta(self.alpha * weight, (1 - self.alpha) * weight)))


@dataclass(frozen=True, slots=True)
class Shape:
    """seconds: the whole; level: share of the peak at a time."""

    seconds: float
    level: Callable[[float], float]


def _burst(now: float) -> float:
    """A few quiet minutes, six of four times as much, and long enough after that to see replicas go."""
    return 1.0 if 5 * MINUTE <= now < 11 * MINUTE else 0.25


def _diurnal(now: float) -> float:
    """A day in forty minutes: from a tenth at night to the whole by day."""
    return 0.55 - 0.45 * math.cos(2 * math.pi * now / (40 * MINUTE))


SHAPES: Mapping[str, Shape] = {
    "steady": Shape(20 * MINUTE, lambda now: 0.5),
    "burst": Shape(25 * MINUTE, _burst),
    "diurnal": Shape(40 * MINUTE, _diurnal),
}


def arrivals(shape: Shape, peak: float, traffic: Traffic, seed: int) -> list[Generation]:
    """A Poisson process. peak: generations a second at level 1; arrivals of the peak are thinned to the level."""
    rng = np.random.default_rng(seed)
    found: list[Generation] = []
    now = 0.0
    while (now := now + rng.exponential(1 / peak)) < shape.seconds:
        if rng.random() < shape.level(now):
            found.append(traffic.generation(now, rng))
    return found
