"""What a forward is expected to take, learned from those that ran: a draft in time is worth more than a long one."""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest forward in the running mean
_DOUBT = 0.8


class ForwardCost:
    """Seconds of a forward, as one running mean per power of two of its token rows."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}

    def observe(self, rows: int, seconds: float) -> None:
        size = rows.bit_length()
        mean = self._means.get(size, seconds)
        self._means[size] = mean + _WEIGHT * (seconds - mean)

    def estimate(self, rows: int) -> float:
        """Seconds, by forwards of that size or else of the nearest smaller one; 0 before anything is known."""
        sizes = [size for size in self._means if size <= rows.bit_length()]
        return self._means[max(sizes)] if sizes else 0.0

    def rows_within(self, seconds: float, rows: int) -> int:
        """The most rows up to `rows`, by halving, whose forward should end within `seconds`; 0: not even one row."""
        while rows and self.estimate(rows) > seconds:
            rows //= 2
        return rows

    def doubt(self) -> None:
        """Call it where an estimate kept a forward from running: without forwards nothing corrects an estimate, and one
        slow moment would be the last."""
        self._means = {size: _DOUBT * mean for size, mean in self._means.items()}
