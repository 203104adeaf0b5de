"""What our processes export, for rules and dashboards to be held against."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from specdec.edge.telemetry import CoordinatorMetrics, ReplicaMetrics, Telemetry
from tests.metrics import use_all
from tests.observability.promql import Selector

ADDED = frozenset({"job", "instance"})  # by Prometheus, to everything that it scrapes
ITS_OWN: Mapping[str, frozenset[str]] = {"up": frozenset(), "ALERTS": frozenset({"alertname", "alertstate"})}


@cache
def exported() -> Mapping[str, frozenset[str]]:
    """Series, as queries name them, and their labels."""
    with Telemetry.start("x", env={}) as telemetry:
        for metrics in (CoordinatorMetrics(telemetry), ReplicaMetrics(telemetry)):
            use_all(metrics)
        text = telemetry.scrape()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: frozenset(sample.labels) for sample in samples}


def unknown(selector: Selector, recorded: frozenset[str]) -> str | None:
    """What is wrong with it, None where nothing is. recorded: names that recording rules make."""
    if selector.metric in recorded:
        return None
    labels = {**exported(), **ITS_OWN}.get(selector.metric)
    if labels is None:
        return f"{selector.metric} is exported by nobody"
    strange = selector.labels - labels - ADDED
    return f"{selector.metric} has no label {', '.join(sorted(strange))}" if strange else None
