"""What this process' forwards take: measured at start-up, corrected by every forward that runs."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from specdec.core.step_time import UNMEASURED, StepTimeTable
from specdec.lm.network import BLOCK
from specdec.lm.runner import Runner, Segment

CONTEXTS = (128, 1024, 8192, 65536)
# Rows in the order in which they matter where time is short: the ends first, then what lies between. Behind the longer
# contexts the ends do: between them the added time grows with the rows.
FIRST_ROWS, DEEP_ROWS, MORE_ROWS = (1, 8, 64), (1, 64), (16, 32, 4, 2)
MOST_ROWS = 2048
GAIN = 1.05  # rows a second, over those of half the rows: with less, still larger forwards are not looked at
LEAST_REPEATS, REPEATS = 2, 3  # the first forward of a size may have things to prepare
SHARE = 0.05  # of the time for one point, beyond its least repeats
LEARN = 0.1  # weight of a forward in the running corrections
STRANGE = 4.0  # a forward that took more times than this what was expected, or less than 1 / this, counts as just so


@dataclass(slots=True)
class Tuner:
    """Measures through `runner`, whose sequences it fills with rows that no forward has written: the runner should be
    one that nobody else uses. seconds: for all of it; nodes: rows of one forward whose logits are wanted at most;
    max_context: rows of one sequence at most."""

    runner: Runner
    seconds: float
    most_rows: int
    nodes: int
    max_context: int
    clock: Callable[[], float] = time.perf_counter
    times: dict[tuple[int, int], float] = field(default_factory=dict)  # (rows, context) -> seconds
    end: float = 0.0

    def table(self) -> StepTimeTable:
        """Points are measured by their importance until `seconds` are over; one row always is. The others lie on lines
        between those that were."""
        contexts = _contexts(self.max_context)
        self.end = self.clock() + self.seconds
        for rows, context in self._points(contexts):
            if rows > self.most_rows or context + rows > self.max_context:
                continue
            if not self.times or self.clock() + self._guess(rows, context) < self.end:
                self.times[rows, context] = self._measure(rows, context)
        return _completed(self.times, contexts)

    def _points(self, contexts: Sequence[int]) -> Iterator[tuple[int, int]]:
        first, *deeper = contexts
        yield from ((rows, first) for rows in FIRST_ROWS)
        yield from ((rows, context) for rows in DEEP_ROWS for context in deeper)
        yield from ((rows, first) for rows in MORE_ROWS)
        rows = 2 * max(FIRST_ROWS)
        while rows <= MOST_ROWS and self._gains(rows // 2, first):
            yield rows, first
            rows *= 2

    def _gains(self, rows: int, context: int) -> bool:
        whole, half = self.times.get((rows, context)), self.times.get((rows // 2, context))
        return whole is not None and half is not None and 2 * half > GAIN * whole

    def _guess(self, rows: int, context: int) -> float:
        """Seconds that a forward may take, by the latest of the largest smaller ones."""
        known = {r: seconds for (r, _), seconds in self.times.items() if r <= rows}
        return known[max(known)] * UNMEASURED.estimate(rows, 0) / UNMEASURED.estimate(max(known), 0)

    def _measure(self, rows: int, context: int) -> float:
        """The median of a few forwards, the shorter of two where they are long; none begins that would end too late."""
        sequence = self.runner.new_sequence()
        samples: list[float] = []
        held = np.zeros(context, dtype=np.uint32)
        try:
            sequence.reserve(context + rows)
            sequence.append(held, held[:0], np.zeros(0, dtype=np.int64))
            while self._wants_more(samples):
                samples.append(self._forward(Segment(sequence, _tokens(rows), wanted=min(rows, self.nodes))))
                sequence.rewind(held)
        finally:
            sequence.discard()  # nobody's context, and never computed
        return median_low(samples)

    def _wants_more(self, samples: list[float]) -> bool:
        if not samples:
            return True
        repeats = REPEATS if sum(samples) < SHARE * self.seconds else LEAST_REPEATS
        return len(samples) < repeats and self.clock() + samples[-1] < self.end

    def _forward(self, segment: Segment) -> float:
        begun = self.clock()
        [logits] = self.runner.forward([segment])
        float(logits[-1, 0])  # a device that computes on its own time has to be waited for
        return self.clock() - begun


class StepTimes:
    """The table in use. Each forward that runs moves the figures of about its size, and by half as much those of half
    and twice its size, and so on: sizes that are seldom computed follow the others. An observation costs a
    microsecond or two, a table made from them some tens, and that only when it is asked for.

    Without a measurement it is a guess in an arbitrary unit, which nothing corrects."""

    def __init__(self, measured: StepTimeTable | None = None) -> None:
        self.measured = measured is not None
        self._first = self._table = measured or UNMEASURED
        self._factors = [1.0] * len(self._first.rows)
        self._current = True

    @property
    def table(self) -> StepTimeTable:
        if not self._current:
            self._current = True
            factors = np.array(self._factors)
            self._table = StepTimeTable.of(
                self._first.rows, self._first.contexts, np.array(self._first.seconds) * factors[:, None]
            )
        return self._table

    def observe(self, rows: int, context: float, seconds: float) -> None:
        """A forward of this many rows, behind `context` rows on average, took so long, laws and draws included."""
        if not self.measured:
            return
        nearest = min(bisect_left(self._first.rows, 0.75 * rows), len(self._factors) - 1)
        seen = seconds / self._first.estimate(rows, context)
        for i, factor in enumerate(self._factors):
            ratio = min(max(seen / factor, 1 / STRANGE), STRANGE)
            self._factors[i] *= ratio ** (LEARN * 0.5 ** abs(i - nearest))
        self._current = False


def shown(table: StepTimeTable) -> str:
    """One line for people, milliseconds."""
    rows = "/".join(map(str, table.rows))
    times = (
        f"{'/'.join(f'{1e3 * line[j]:.1f}' for line in table.seconds)} ms behind {context} tokens"
        for j, context in enumerate(table.contexts)
    )
    return f"forwards of {rows} rows take {', '.join(times)}"


def _contexts(max_context: int) -> list[int]:
    """Whole blocks, the deepest with room for as many rows as are measured there."""
    deepest = max(0, max_context - min(max(DEEP_ROWS), max_context // 2)) // BLOCK * BLOCK
    return [*(context for context in CONTEXTS if context < deepest), deepest]


def _tokens(rows: int) -> NDArray[np.uint32]:
    return np.zeros(rows, dtype=np.uint32)


def _completed(times: dict[tuple[int, int], float], contexts: Sequence[int]) -> StepTimeTable:
    """What longer contexts add is taken to grow with the rows between and beyond those measured."""
    first = contexts[0]
    rows = sorted(r for r, context in times if context == first)
    columns = {first: np.array([times[r, first] for r in rows])}
    for context in contexts[1:]:
        known = sorted(r for r, c in times if c == context and (r, first) in times)
        if known:
            added = [max(0.0, times[r, context] - times[r, first]) for r in known]
            beyond = np.maximum(1.0, np.array(rows) / known[-1])
            columns[context] = columns[first] + np.interp(rows, known, added) * beyond
    seconds = np.stack(list(columns.values()), axis=1)
    if len(rows) == 1:  # nothing is known of more rows
        rows.append(max(FIRST_ROWS))
        seconds = np.stack([seconds[0], seconds[0] * UNMEASURED.estimate(rows[1], 0) / UNMEASURED.estimate(rows[0], 0)])
    return StepTimeTable.of(rows, list(columns), seconds)
