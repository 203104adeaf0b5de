"""Exact integration over uniforms. A rule is a black box that is piecewise constant in each uniform; its
outcome law is found by bisecting for the places where the outcome changes, one uniform after another, in the
order in which the rule reads them. So it is the production rule itself whose law is computed, not a second
derivation of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Process = Callable[[Floats], Hashable]
Law = dict[Any, float]

BISECTIONS = 36  # each breakpoint to 2^-36
LAST = 1 - 2.0**-53


class _Read(np.ndarray[Any, np.dtype[np.float64]]):
    """Uniforms that remember the order in which they were read. A whole-array operation reads all."""

    reads: list[int]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (int, np.integer)):
            self.reads.append(int(index))
            return float(self.view(np.ndarray)[index])
        self.reads.extend(range(len(self)))
        return self.view(np.ndarray)[index]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        self.reads.extend(range(len(self)))
        plain = [x.view(np.ndarray) if isinstance(x, _Read) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)


def outcome_law(process: Process, n: int, *, cells: int = 1) -> Law:
    """P(outcome) for independent uniforms float64[n]. cells: pieces into which each unit interval is cut
    before bisection; 1 suffices where the outcome is monotone in each uniform (thresholds, inverse running
    sums) and each is read only when it matters, or all at once. More cells also look at every corner of the
    other uniforms."""
    law: Law = {}
    _split(process, n, cells, {}, 1.0, law)
    return law


def _run(process: Process, n: int, fixed: dict[int, float], fill: float) -> tuple[Hashable, tuple[int, ...]]:
    us = np.full(n, fill)
    for i, u in fixed.items():
        us[i] = u
    reader = us.view(_Read)
    reader.reads = []
    outcome = process(reader)
    return outcome, tuple(dict.fromkeys(reader.reads))


def _split(process: Process, n: int, cells: int, fixed: dict[int, float], mass: float, law: Law) -> None:
    outcome, reads = _run(process, n, fixed, 0.5)
    free = [i for i in reads if i not in fixed]
    if not free:
        law[outcome] = law.get(outcome, 0.0) + mass
        return
    i = free[0]
    # A rule that reads all its uniforms at once shows what one of them does only at some settings of the others.
    fills = [dict(zip(free[1:], corner, strict=True)) for corner in product((0.0, LAST), repeat=len(free) - 1)]

    def behaviour(u: float) -> Hashable:
        settings = fills if cells > 1 or len(reads) == n else [{}]
        return tuple(_run(process, n, {**other, **fixed, i: u}, 0.5) for other in settings)

    edges = [0.0, *_breakpoints(behaviour, cells), 1.0]
    for low, high in pairwise(edges):
        if high > low:
            _split(process, n, cells, {**fixed, i: (low + high) / 2}, mass * (high - low), law)


def _breakpoints(behaviour: Callable[[float], Hashable], cells: int) -> list[float]:
    points = [i / cells for i in range(cells)] + [LAST]
    known = {u: behaviour(u) for u in points}
    found: list[float] = []

    def search(low: float, high: float, depth: int) -> None:
        if known[low] == known[high]:
            return
        middle = (low + high) / 2
        if depth == 0:
            found.append(middle)
            return
        known[middle] = behaviour(middle)
        search(low, middle, depth - 1)
        search(middle, high, depth - 1)

    for low, high in pairwise(points):
        search(low, high, BISECTIONS)
    return found


def distance(a: Law, b: Law) -> float:
    """Total variation."""
    return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys()) / 2


def assert_lawful(law: Law, target: Law, tolerance: float = 1e-9) -> None:
    """The one check of every law test: all mass is there, and every outcome has the target's probability."""
    assert abs(sum(law.values()) - 1) < tolerance, f"mass {sum(law.values())}"
    for outcome in law.keys() | target.keys():
        got, want = law.get(outcome, 0.0), target.get(outcome, 0.0)
        assert abs(got - want) < tolerance, f"P({outcome}) = {got}, the target's is {want}"
