"""What Prometheus would hold of simulated pods: scrapes at an interval, each with all series of all pods."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Points = list[tuple[float, float]]  # time, value
Series = tuple[str, Labels, float]

KEPT = 900.0  # seconds
NEAR = 1.1  # mean intervals between two samples within which a series is taken to go on to the range's edge


class Samples:
    def __init__(self) -> None:
        self._scrapes: deque[tuple[float, dict[str, Vector]]] = deque()

    def scrape(self, now: float, series: Iterable[Series]) -> None:
        found: dict[str, Vector] = defaultdict(dict)
        for name, labels, value in series:
            found[name][labels] = value
        self._scrapes.append((now, found))
        while self._scrapes[0][0] < now - KEPT:
            self._scrapes.popleft()

    def latest(self, name: str) -> Vector:
        """Of pods that answered the last scrape: those that are gone are known to be."""
        return self._scrapes[-1][1].get(name, {}) if self._scrapes else {}

    def over(self, name: str, begin: float, end: float) -> dict[Labels, Points]:
        found: dict[Labels, Points] = defaultdict(list)
        for time, vectors in self._scrapes:
            if begin < time <= end:
                for labels, value in vectors.get(name, {}).items():
                    found[labels].append((time, value))
        return found


def increase(points: Sequence[tuple[float, float]], begin: float, end: float) -> float | None:
    """Of a counter between two times, as Prometheus reckons it: what the samples show, drawn out to the edges where the
    first and the last are near them, half an interval where they are not, and never to before the counter was 0."""
    if len(points) < 2:
        return None
    (first, low), (last, _) = points[0], points[-1]
    values = [value for _, value in points]
    grown = sum(b - a if b >= a else b for a, b in pairwise(values))
    covered = last - first
    interval = covered / (len(points) - 1)
    before, behind = first - begin, end - last
    if grown > 0 and low >= 0:
        before = min(before, covered * low / grown)
    before = before if before < NEAR * interval else interval / 2
    behind = behind if behind < NEAR * interval else interval / 2
    return grown * (covered + before + behind) / covered
