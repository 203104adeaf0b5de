"""What a process tells on /metrics, read as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from specdec.edge.telemetry import CoordinatorMetrics, ReplicaMetrics, Telemetry

Series = Mapping[str, frozenset[str]]  # the labels of each metric, as queries name it


def page(url: str) -> str:
    """ "" where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return str(reply.read().decode())
    except OSError:
        return ""


def total(text: str, name: str, **labels: str) -> float:
    """The sum over the series of a page that carry these labels; 0 where there is none."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def series_of(text: str) -> Series:
    """Of a page."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return {name: frozenset(labels) for name, labels in found.items()}


def use(instrument: Any) -> None:
    """One call, with the labels that it declares."""
    method = next(m for m in ("add", "record", "set") if hasattr(instrument, m))
    getattr(instrument, method)(1, **dict.fromkeys(instrument._labels, "x"))


def use_all(metrics: CoordinatorMetrics | ReplicaMetrics) -> None:
    """One call of each instrument: then a page shows them all."""
    for instrument in vars(metrics).values():
        use(instrument)


def declared(*, labelled: bool = False) -> Series:
    """What /metrics would show once every instrument was used. labelled: only of those with labels of their own, which
    show nothing before the event that they count."""
    with Telemetry.start("declared", env={}) as telemetry:
        for metrics in (CoordinatorMetrics(telemetry), ReplicaMetrics(telemetry)):
            for instrument in vars(metrics).values():
                if instrument._labels or not labelled:
                    use(instrument)
        found = series_of(telemetry.scrape())
    return {name: labels for name, labels in found.items() if not labelled or labels - {"service_name", "le"}}
