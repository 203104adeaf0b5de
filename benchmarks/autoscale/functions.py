"""What PromQL's operators and functions do to numbers and series."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

from benchmarks.autoscale.samples import Labels, Samples, Vector

Value = float | Vector
Evaluate = Callable[[Samples, float], Value]


class QueryError(ValueError):
    """The query cannot be evaluated here."""


AGGREGATE: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}
OVER_TIME: Mapping[str, Callable[[list[float]], float]] = {
    f"{name}_over_time": AGGREGATE[name] for name in ("sum", "avg", "max", "min", "count")
}


def vector(value: Value) -> Vector:
    if not isinstance(value, dict):
        raise QueryError("a number where series are wanted")
    return value


def scalar(value: Value) -> float:
    if isinstance(value, dict):
        raise QueryError("series where a number is wanted")
    return value


def binary(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(samples: Samples, now: float) -> Value:
        a, b = left(samples, now), right(samples, now)
        if sign == "or":
            return {**vector(b), **vector(a)}
        if not isinstance(a, dict) and not isinstance(b, dict):
            return _arithmetic(sign, a, b)
        if isinstance(a, dict) and isinstance(b, dict):
            pairs = {labels: (a[labels], b[labels]) for labels in a.keys() & b.keys()}
        elif isinstance(a, dict):
            pairs = {labels: (value, scalar(b)) for labels, value in a.items()}
        else:
            pairs = {labels: (a, value) for labels, value in vector(b).items()}
        if sign in _COMPARE:
            kept = 0 if isinstance(a, dict) else 1
            return {labels: pair[kept] for labels, pair in pairs.items() if _COMPARE[sign](*pair)}
        return {labels: _arithmetic(sign, *pair) for labels, pair in pairs.items()}

    return evaluate


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


def _arithmetic(sign: str, a: float, b: float) -> float:
    if sign in _COMPARE:
        return float(_COMPARE[sign](a, b))
    if sign == "/":
        return a / b if b else (math.nan if not a or math.isnan(a) else math.copysign(math.inf, a))
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def quantile(share: Evaluate, inner: Evaluate) -> Evaluate:
    def evaluate(samples: Samples, now: float) -> Value:
        groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
        for labels, value in vector(inner(samples, now)).items():
            bound = dict(labels)["le"]
            groups[frozenset(pair for pair in labels if pair[0] != "le")].append((float(bound), value))
        q = scalar(share(samples, now))
        return {labels: _of_buckets(q, sorted(buckets)) for labels, buckets in groups.items()}

    return evaluate


def _of_buckets(q: float, buckets: list[tuple[float, float]]) -> float:
    """Along a straight line within the bucket; the last finite bound where it lies beyond."""
    total = buckets[-1][1]
    if not total:
        return math.nan
    rank, low, below = q * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
        low, below = (low if math.isinf(bound) else bound), count
    return low
