"""Queries of scalers, evaluated on simulated scrapes: the part of PromQL that they use. Whatever else a query holds is
an error that names it, never a guess."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.autoscale.functions import (
    AGGREGATE,
    OVER_TIME,
    Evaluate,
    QueryError,
    Value,
    binary,
    quantile,
    scalar,
    vector,
)
from benchmarks.autoscale.samples import Labels, Samples, increase

_TOKEN = re.compile(
    r"""\s*(?:(?P<range>\[\d+(?:ms|s|m|h)\])
    | (?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)
    | (?P<name>[A-Za-z_:][\w:]*)
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/(){},=<>]))""",
    re.VERBOSE,
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda value, wanted: value == wanted,
    "!=": lambda value, wanted: value != wanted,
    "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
    "!~": lambda value, wanted: re.fullmatch(wanted, value) is None,
}
_LEVELS = (("or",), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
_COUNTERS = ("rate", "increase")


@dataclass(frozen=True, slots=True)
class Query:
    """metrics: names of the metrics that it reads; labels: those by which it chooses or groups series."""

    text: str
    metrics: frozenset[str]
    labels: frozenset[str]
    evaluate: Evaluate = field(compare=False)

    def value(self, samples: Samples, now: float) -> float | None:
        """The one number that a scaler reads; None where there is none, or one that is no number."""
        found = self.evaluate(samples, now)
        if isinstance(found, dict):
            if len(found) > 1:
                raise QueryError(f"{self.text!r} has {len(found)} results, a scaler wants one")
            found = next(iter(found.values()), math.nan)
        return found if math.isfinite(found) else None


def parse(text: str) -> Query:
    parser = _Parser(text)
    evaluate = parser.expression(0)
    parser.expect("")
    return Query(text, frozenset(parser.metrics), frozenset(parser.labels), evaluate)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self.metrics: set[str] = set()
        self.labels: set[str] = set()
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise QueryError(f"cannot read {text[at : at + 20].strip()!r} in {self._text!r}")
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            at = match.end()
        self._tokens.append(("end", ""))

    def _peek(self) -> str:
        return self._tokens[0][1]

    def _take(self, kind: str) -> str:
        found, text = self._tokens.pop(0)
        if found != kind:
            raise QueryError(f"{text or 'the end'!r} where a {kind} is wanted in {self._text!r}")
        return text

    def expect(self, text: str) -> None:
        if self._peek() != text:
            raise QueryError(f"{self._peek() or 'the end'!r} where {text or 'the end'!r} is wanted in {self._text!r}")
        if text:
            self._tokens.pop(0)

    def expression(self, level: int) -> Evaluate:
        if level == len(_LEVELS):
            return self._unary()
        left = self.expression(level + 1)
        while self._peek() in _LEVELS[level]:
            sign = self._tokens.pop(0)[1]
            left = binary(sign, left, self.expression(level + 1))
        return left

    def _unary(self) -> Evaluate:
        if self._peek() == "-":
            self._tokens.pop(0)
            return binary("*", lambda samples, now: -1.0, self._unary())
        if self._peek() == "(":
            self.expect("(")
            inner = self.expression(0)
            self.expect(")")
            return inner
        kind, text = self._tokens[0]
        if kind == "number":
            self._tokens.pop(0)
            return lambda samples, now: float(text)
        name = self._take("name")
        if name in AGGREGATE:
            return self._aggregate(AGGREGATE[name])
        if self._peek() == "(":
            return self._call(name)
        return self._instant(name)

    def _aggregate(self, combine: Callable[[list[float]], float]) -> Evaluate:
        grouping = self._grouping()
        self.expect("(")
        inner = self.expression(0)
        self.expect(")")
        keep = grouping or self._grouping() or (lambda labels: frozenset())

        def evaluate(samples: Samples, now: float) -> Value:
            groups: dict[Labels, list[float]] = defaultdict(list)
            for labels, value in vector(inner(samples, now)).items():
                groups[keep(labels)].append(value)
            return {labels: combine(values) for labels, values in groups.items()}

        return evaluate

    def _grouping(self) -> Callable[[Labels], Labels] | None:
        how = self._peek()
        if how not in ("by", "without"):
            return None
        self._tokens.pop(0)
        self.expect("(")
        names = set[str]()
        while self._peek() != ")":
            names.add(self._take("name"))
            if self._peek() == ",":
                self.expect(",")
        self.expect(")")
        self.labels |= names
        return lambda labels: frozenset(pair for pair in labels if (pair[0] in names) == (how == "by"))

    def _call(self, name: str) -> Evaluate:
        self.expect("(")
        if name in _COUNTERS or name in OVER_TIME:
            evaluate = self._ranged(name)
        elif name == "histogram_quantile":
            share = self.expression(0)
            self.expect(",")
            evaluate = quantile(share, self.expression(0))
        elif name == "vector":
            inner = self.expression(0)

            def evaluate(samples: Samples, now: float) -> Value:
                return {frozenset(): scalar(inner(samples, now))}
        elif name in ("clamp_min", "clamp_max"):
            first = self.expression(0)
            self.expect(",")
            limit, choose = self.expression(0), max if name == "clamp_min" else min

            def evaluate(samples: Samples, now: float) -> Value:
                bound = scalar(limit(samples, now))
                return {labels: choose(v, bound) for labels, v in vector(first(samples, now)).items()}
        else:
            raise QueryError(f"{name}() is not simulated: {self._text!r}")
        self.expect(")")
        return evaluate

    def _selector(self, name: str) -> Callable[[Labels], bool]:
        """Whether a series is chosen. A label that a series lacks is as good as empty."""
        self.metrics.add(name)
        matchers: list[tuple[str, Callable[[str, str], bool], str]] = []
        if self._peek() == "{":
            self.expect("{")
            while self._peek() != "}":
                label, sign, wanted = self._take("name"), self._take("sign"), self._take("text")[1:-1]
                if sign not in _MATCHES:
                    raise QueryError(f"{sign!r} behind the label {label} in {self._text!r}")
                matchers.append((label, _MATCHES[sign], wanted))
                self.labels.add(label)
                if self._peek() == ",":
                    self.expect(",")
            self.expect("}")

        def chosen(labels: Labels) -> bool:
            values = dict(labels)
            return all(match(values.get(label, ""), wanted) for label, match, wanted in matchers)

        return chosen

    def _instant(self, name: str) -> Evaluate:
        chosen = self._selector(name)
        return lambda samples, now: {k: v for k, v in samples.latest(name).items() if chosen(k)}

    def _ranged(self, function: str) -> Evaluate:
        name = self._take("name")
        chosen = self._selector(name)
        amount, unit = re.fullmatch(r"\[(\d+)(\w+)\]", self._take("range")).groups()  # type: ignore[union-attr]
        seconds = float(amount) * _UNITS[unit]

        def evaluate(samples: Samples, now: float) -> Value:
            found = {k: v for k, v in samples.over(name, now - seconds, now).items() if chosen(k)}
            if function in OVER_TIME:
                return {k: OVER_TIME[function]([value for _, value in points]) for k, points in found.items()}
            grown = {k: increase(points, now - seconds, now) for k, points in found.items()}
            over = seconds if function == "rate" else 1.0
            return {k: value / over for k, value in grown.items() if value is not None}

        return evaluate
