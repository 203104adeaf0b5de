"""What a forward of the target costs, by its rows and by how much context they look back on. A verifier measures it,
its schedule cuts prompts by it, and the coordinator's planner prices drafts by it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class StepTimeTable:
    """seconds[i][j]: of a forward of rows[i] token rows behind contexts[j] rows that are held already. Knots ascend;
    seconds are positive and fall neither with rows nor with context: build it by `of`, which sees to that."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(rows: Sequence[int], contexts: Sequence[int], seconds: ArrayLike) -> StepTimeTable:
        """seconds: [rows, contexts]. Where more work seems to take less time, the lower figure stands for both: what
        disturbs a measurement only ever makes it longer."""
        times = np.array(seconds, dtype=np.float64)
        assert times.size and times.shape == (len(rows), len(contexts)), f"{times.shape} times do not fit the knots"
        assert (np.diff([0, *rows]) > 0).all() and (np.diff([-1, *contexts]) > 0).all(), "knots must ascend"
        assert np.isfinite(times).all() and times.min() > 0, "a forward takes time"
        for axis in (0, 1):
            times = np.flip(np.minimum.accumulate(np.flip(times, axis), axis), axis)
        return StepTimeTable(tuple(rows), tuple(contexts), tuple(tuple(line) for line in times.tolist()))

    def estimate(self, rows: float, context: float) -> float:
        """Seconds, by straight lines between the knots. Beyond the last rows the last line goes on; beyond the first
        and the last context nothing changes."""
        return self.behind(context)(rows)

    def behind(self, context: float) -> Callable[[float], float]:
        """`estimate` by rows alone: for who asks for many."""
        j, deep = _place(self.contexts, context)
        deep, right = min(deep, 1.0), min(j + 1, len(self.contexts) - 1)
        seconds = [line[j] + deep * (line[right] - line[j]) for line in self.seconds]
        knots, last = self.rows, len(self.rows) - 2

        def estimate(rows: float) -> float:
            i = min(bisect_right(knots, rows) - 1, last)
            if i < 0:
                return seconds[0]
            first, start = seconds[i], knots[i]
            return first + (rows - start) / (knots[i + 1] - start) * (seconds[i + 1] - first)

        return estimate

    def saturating_rows(self, share: float) -> int:
        """The first of `rows` that brings `share` of the most rows a second of any, over the shortest context: larger
        forwards gain little and make others wait."""
        rates = [rows / line[0] for rows, line in zip(self.rows, self.seconds, strict=True)]
        return next(rows for rows, rate in zip(self.rows, rates, strict=True) if rate >= share * max(rates))


def most_rows(limit: int, fits: Callable[[int], bool]) -> int:
    """The most rows up to `limit` that fit, 0 where not even one does. Where some fit, fewer do."""
    good, bad = 0, limit + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _place(knots: tuple[int, ...], x: float) -> tuple[int, float]:
    """(i, f): x lies the share f of the way from knot i to the next; f is above 1 beyond the last knot, and 0 before
    the first or where there is only one."""
    i = min(bisect_right(knots, x), len(knots) - 1) - 1
    if i < 0:
        return 0, 0.0
    return i, (x - knots[i]) / (knots[i + 1] - knots[i])


# Where nothing was measured: the weights cost as much as this many rows. The unit of time is then arbitrary.
FLAT = 32
UNMEASURED = StepTimeTable((1, 4096), (0,), ((FLAT + 1.0,), (FLAT + 4096.0,)))
