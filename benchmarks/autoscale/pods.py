"""A pod: what verifiers and drafters have in common."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.autoscale.sessions import Session
from specdec.edge import telemetry

BOUNDS = telemetry._SECONDS  # of the histograms that processes export


class Clock(Protocol):
    now: float

    def at(self, time: float, act: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class Waits:
    """Of messages before their first forward: the histogram that the process exports, and every single one."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds
        self.count += 1


@dataclass(slots=True, eq=False)
class Pod:
    """ready: when it begins to serve; leaving: from when on its sessions move, None: it stays."""

    number: int
    created: float
    ready: float
    leaving: float | None = None
    sessions: set[Session] = field(default_factory=set)
    waits: Waits = field(default_factory=Waits)
    queue: list[Session] = field(default_factory=list)
    running: list[Session] = field(default_factory=list)
    forwards: int = 0
    busy_seconds: float = 0.0

    def gone(self, now: float) -> bool:
        return self.leaving is not None and now >= self.leaving

    @property
    def pressure(self) -> int:
        return len(self.queue) + len(self.running) + len(self.sessions)
