"""Kubernetes' horizontal autoscaler, by the rules of its documentation (algorithm details, configurable scaling
behaviour), without a cluster and with time as an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

SYNC = 15.0  # seconds between two looks, the controller manager's default
TOLERANCE = 0.1

TargetKind = Literal["Value", "AverageValue"]


@dataclass(frozen=True, slots=True)
class Policy:
    """So many pods, or so many percent of those at the period's start, in a period."""

    kind: Literal["Pods", "Percent"]
    value: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one direction. select: which of the policies counts; window: seconds of stabilisation."""

    policies: tuple[Policy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"
    window: float = 0.0
    tolerance: float = TOLERANCE


DEFAULT_UP = Rules((Policy("Pods", 4, 15), Policy("Percent", 100, 15)))
DEFAULT_DOWN = Rules((Policy("Percent", 100, 15),), window=300.0)


@dataclass(frozen=True, slots=True)
class Behaviour:
    up: Rules = DEFAULT_UP
    down: Rules = DEFAULT_DOWN

    def changes(self, ratio: float) -> bool:
        """Whether a value that is `ratio` times its target is far enough from it."""
        return not 1 - self.down.tolerance <= ratio <= 1 + self.up.tolerance


def wanted(
    kind: TargetKind, target: float, value: float, current: int, ready: int, behaviour: Behaviour | None = None
) -> int:
    """Replicas that one metric asks for, as external and object metrics do. current: those that should be, ready:
    those that are.

    A `Value` is compared as it is, and tells how many times the pods that are ready must become. An `AverageValue` is
    a sum over all pods: the target is each pod's share."""
    changes = (behaviour or Behaviour()).changes
    if kind == "AverageValue":
        return math.ceil(_exact(value / target)) if changes(value / (target * current)) else current
    ratio = value / target
    return math.ceil(_exact(ratio * ready)) if changes(ratio) else current


def wanted_by_pods(target: float, values: Sequence[float], missing: int, behaviour: Behaviour | None = None) -> int:
    """Replicas that a metric of type Pods asks for. values: one for each pod that has it; missing: pods that have none
    yet, which count as on target where the others would scale down, as idle where they would scale up."""
    changes = (behaviour or Behaviour()).changes
    current = len(values) + missing
    ratio = sum(values) / (target * len(values))
    if not missing:
        return math.ceil(_exact(ratio * len(values))) if changes(ratio) else current
    filled = [*values, *[target if ratio < 1 else 0.0] * missing]
    corrected = sum(filled) / (target * len(filled))
    if not changes(corrected) or (ratio < 1) != (corrected < 1):
        return current
    return math.ceil(_exact(corrected * len(filled)))


def _exact(count: float) -> float:
    """Without the noise of float64, which `ceil` would make a pod of; the real one computes with milli-integers."""
    return round(count, 6)


@dataclass(frozen=True, slots=True)
class _Stamped:
    """A recommendation, or a change of so many replicas."""

    time: float
    count: int


class Autoscaler:
    """State of one HorizontalPodAutoscaler: what it recommended and did."""

    def __init__(self, least: int, most: int, behaviour: Behaviour) -> None:
        self.least, self.most, self.behaviour = least, most, behaviour
        self._recommended: list[_Stamped] = []
        self._added: list[_Stamped] = []
        self._removed: list[_Stamped] = []

    def sync(self, now: float, current: int, proposals: Sequence[int | None]) -> int:
        """Replicas from now on. proposals: one per metric, None where it could not be read: then the others may only
        scale up. The greatest counts. What there was at the first look counts as recommended then."""
        if not self._recommended:
            self._recommended.append(_Stamped(now, current))
        if not self.least <= current <= self.most:
            return self._changed(now, current, min(max(current, self.least), self.most))
        known = [one for one in proposals if one is not None]
        if not known or (len(known) < len(proposals) and max(known) < current):
            return current
        stable = self._stabilised(now, current, max(known))
        return self._changed(now, current, self._limited(now, current, stable))

    def _stabilised(self, now: float, current: int, desired: int) -> int:
        """Up no further than the least, down no further than the most that was recommended within the direction's
        window."""
        self._recommended.append(_Stamped(now, desired))
        longest = max(self.behaviour.up.window, self.behaviour.down.window)
        self._recommended = [one for one in self._recommended if one.time > now - longest or one.time == now]
        up = min(self._within(now, self.behaviour.up.window, desired))
        down = max(self._within(now, self.behaviour.down.window, desired))
        return min(max(current, up), down)

    def _within(self, now: float, window: float, desired: int) -> list[int]:
        return [desired, *(one.count for one in self._recommended if one.time > now - window)]

    def _limited(self, now: float, current: int, desired: int) -> int:
        if desired > current:
            rules, grown = self.behaviour.up, self._grown
            limit = self._limit(now, current, rules, max if rules.select == "Max" else min, grown)
            return min(desired, self.most, max(current, limit))
        if desired < current:
            rules, shrunk = self.behaviour.down, self._shrunk
            limit = self._limit(now, current, rules, min if rules.select == "Max" else max, shrunk)
            return max(desired, self.least, min(current, limit))
        return desired

    def _limit(
        self,
        now: float,
        current: int,
        rules: Rules,
        choose: Callable[[list[int]], int],
        moved: Callable[[int, Policy], int],
    ) -> int:
        if rules.select == "Disabled":
            return current
        limits = []
        for policy in rules.policies:
            begun = now - policy.seconds
            added = sum(one.count for one in self._added if one.time > begun)
            removed = sum(one.count for one in self._removed if one.time > begun)
            limits.append(moved(current - added + removed, policy))
        return choose(limits)

    @staticmethod
    def _grown(start: int, policy: Policy) -> int:
        """Rounded up: a few percent of few pods are one pod."""
        if policy.kind == "Pods":
            return start + policy.value
        return math.ceil(_exact(start * (1 + policy.value / 100)))

    @staticmethod
    def _shrunk(start: int, policy: Policy) -> int:
        if policy.kind == "Pods":
            return start - policy.value
        return int(_exact(start * (1 - policy.value / 100)))

    def _changed(self, now: float, current: int, replicas: int) -> int:
        if replicas > current:
            self._added.append(_Stamped(now, replicas - current))
        if replicas < current:
            self._removed.append(_Stamped(now, current - replicas))
        return replicas
