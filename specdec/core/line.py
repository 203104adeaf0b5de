"""A straight line through observations that fade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MEMORY = 0.96  # weight that an observation keeps per later one: about 25 count
SLOPE_PRIOR = 0.1  # weight of a prior slope, in observations spread by their own mean


@dataclass(frozen=True, slots=True)
class Line:
    """y over x from decayed observations: total weight, means and centred second moments."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> Line:
        old = MEMORY * self.weight
        new = old + 1
        dx, dy = x - self.x, y - self.y
        return Line(
            new,
            self.x + dx / new,
            self.y + dy / new,
            MEMORY * self.xx + old / new * dx * dx,
            MEMORY * self.xy + old / new * dx * dy,
        )

    def faded(self, most: float) -> Line:
        """The same line, known from `most` observations at most."""
        share = min(1.0, most / self.weight) if self.weight else 1.0
        return Line(share * self.weight, self.x, self.y, share * self.xx, share * self.xy)

    def slope(self, prior: float) -> float:
        """Of y over x. It leans on `prior`, which alone decides while every observation has the same x > 0."""
        pull = SLOPE_PRIOR * self.x * self.x
        return (self.xy + pull * prior) / (self.xx + pull)

    def at(self, x: float) -> float:
        """y at x, y in proportion to x being the prior. The slope is kept between 0 and that, so y stays positive."""
        return self.line()(x)

    def line(self) -> Callable[[float], float]:
        """`at`, for who asks for many."""
        middle, y = self.x, self.y
        if middle <= 0:
            return lambda x: y
        prior = y / middle
        slope = min(max(self.slope(prior), 0.0), prior)
        return lambda x: y + slope * (x - middle)


EMPTY_LINE = Line()
