"""What a process tells on /metrics, read as Prometheus reads it."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from specdec.edge.telemetry import CoordinatorMetrics, ReplicaMetrics


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


def use_all(metrics: CoordinatorMetrics | ReplicaMetrics) -> None:
    """One call of each instrument, with the labels that it declares: then a page shows them all."""
    for instrument in vars(metrics).values():
        labels = dict.fromkeys(instrument._labels, "x")
        method = next(m for m in ("add", "record", "set") if hasattr(instrument, m))
        getattr(instrument, method)(1, **labels)
