"""Metric instruments that cannot take a request down: what goes wrong inside is logged once and counted
(`specdec_metric_failures_total`). Each declares its labels; a call with others is such a failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

Labels = Mapping[str, str | int]
Number = int | float
Series = tuple[tuple[str, str | int], ...]  # label and value, sorted

_log = logging.getLogger(__name__)


class Failures:
    """How many metric calls failed in this process' telemetry, and which instruments' failures were
    logged."""

    def __init__(self, meter: Meter) -> None:
        self.count = 0
        self._logged: set[str] = set()
        meter.create_observable_counter(
            "specdec_metric_failures_total",
            callbacks=[lambda _: [Observation(self.count)]],
            description="metric calls that failed",
        )

    def record(self, name: str) -> None:
        """Call it where the exception is handled."""
        self.count += 1
        if name not in self._logged:
            self._logged.add(name)
            _log.exception("a call of the metric %s failed; further failures are only counted", name)


class _Instrument:
    def __init__(self, failures: Failures, name: str, labels: Sequence[str]) -> None:
        self._failures = failures
        self._labels = frozenset(labels)
        self.name = name

    def _check(self, labels: Labels) -> None:
        if labels.keys() != self._labels:
            raise ValueError(f"labels {sorted(labels)} instead of {sorted(self._labels)}")


class Counter(_Instrument):
    """Only ever rises. Without labels it is exported from the start, as 0.

    Adds up by itself and is read when somebody looks: a cycle counts a dozen things, and each of the SDK's own counters
    would cost it some microseconds."""

    def __init__(self, meter: Meter, failures: Failures, name: str, description: str, labels: Sequence[str]) -> None:
        super().__init__(failures, name, labels)
        self._totals: dict[Series, Number] = {} if labels else {(): 0}
        self._lock = threading.Lock()
        meter.create_observable_counter(name, callbacks=[self._observe], description=description)

    def add(self, amount: Number = 1, **labels: str | int) -> None:
        try:
            self._check(labels)
            if amount < 0:
                raise ValueError(f"a counter cannot fall: {amount}")
            series = tuple(sorted(labels.items()))
            with self._lock:
                self._totals[series] = self._totals.get(series, 0) + amount
        except Exception:
            self._failures.record(self.name)

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            totals = list(self._totals.items())
        return [Observation(total, dict(series)) for series, total in totals]


class Histogram(_Instrument):
    """buckets: upper bounds, in the unit of the recorded values."""

    def __init__(
        self,
        meter: Meter,
        failures: Failures,
        name: str,
        description: str,
        buckets: Sequence[float],
        labels: Sequence[str],
        unit: str,
    ) -> None:
        super().__init__(failures, name, labels)
        self._inner = meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=[float(bound) for bound in buckets]
        )

    def record(self, value: Number, **labels: str | int) -> None:
        try:
            self._check(labels)
            self._inner.record(value, labels)
        except Exception:
            self._failures.record(self.name)


class Gauge(_Instrument):
    """The last value set, or what a function says at the moment of the scrape (on another thread: it must
    only read)."""

    def __init__(self, meter: Meter, failures: Failures, name: str, description: str, labels: Sequence[str]) -> None:
        super().__init__(failures, name, labels)
        self._values: dict[Series, Number | Callable[[], Number]] = {}
        meter.create_observable_gauge(name, callbacks=[self._observe], description=description)

    def set(self, value: Number | Callable[[], Number], **labels: str | int) -> None:
        try:
            self._check(labels)
            self._values[tuple(sorted(labels.items()))] = value
        except Exception:
            self._failures.record(self.name)

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        observations = []
        for labels, value in list(self._values.items()):
            try:
                observations.append(Observation(value() if callable(value) else value, dict(labels)))
            except Exception:
                self._failures.record(self.name)
        return observations
