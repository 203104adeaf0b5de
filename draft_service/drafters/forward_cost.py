"""What a forward is expected to take, learned from those that ran: a draft in time is worth more than a long one."""

from __future__ import annotations

import numpy as np

_WEIGHT = 0.2  # of the newest forward in the running means
_DOUBT = 0.8


class ForwardCost:
    """Seconds of a forward by its token rows: running means for each power of two, and straight lines between."""

    def __init__(self) -> None:
        self._means: dict[int, tuple[float, float]] = {}  # bits of the number of rows -> rows, seconds

    def observe(self, rows: int, seconds: float) -> None:
        size = rows.bit_length()
        old_rows, old_seconds = self._means.get(size, (float(rows), seconds))
        self._means[size] = (
            old_rows + _WEIGHT * (rows - old_rows),
            old_seconds + _WEIGHT * (seconds - old_seconds),
        )

    def estimate(self, rows: int) -> float:
        """Seconds; beyond the largest size known in proportion to the rows, 0 before anything is known."""
        if not self._means:
            return 0.0
        known, seconds = zip(*sorted(self._means.values()), strict=True)
        return float(np.interp(rows, known, seconds) * max(1.0, rows / known[-1]))

    def rows_within(self, seconds: float, rows: int) -> int:
        """The most rows up to `rows`, by halving, whose forward should end within `seconds`; 0: not even one row."""
        while rows and self.estimate(rows) > seconds:
            rows //= 2
        return rows

    def doubt(self) -> None:
        """Call it where an estimate kept a forward from running: without forwards nothing corrects an estimate, and one
        slow moment would be the last."""
        self._means = {size: (rows, _DOUBT * seconds) for size, (rows, seconds) in self._means.items()}
