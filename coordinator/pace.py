"""How long a replica usually takes over a message, and how long it is worth waiting for."""

from __future__ import annotations

from dataclasses import dataclass

LEARN = 0.2  # weight of a message in the running mean


@dataclass(slots=True)
class Pace:
    """typical: seconds of a message, None: nobody knows."""

    typical: float | None = None

    def learn(self, seconds: float) -> None:
        before = seconds if self.typical is None else self.typical
        self.typical = before + LEARN * (seconds - before)

    def budget(self, limit: float, grace: float, patience: float) -> float:
        """Seconds for the next message, at most `limit`: a replica that is only so late is worth more than its
        absence."""
        return limit if self.typical is None else min(limit, grace + patience * self.typical)


def budget_us(budget: float, until: float, now: float) -> int:
    """Microseconds that a replica is told it has: no more than what is left of the request. until, now: seconds."""
    return max(1, int(1e6 * min(budget, until - now)))
