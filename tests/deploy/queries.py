"""PromQL of scalers, rules and dashboards: each metric and label that it names is one that a process shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from tests.deploy.manifests import Manifests, shown
from tests.metrics import Series

SCRAPED = frozenset({"service_name", "namespace", "pod", "service", "container", "endpoint", "job", "instance", "le"})
PROMETHEUS = frozenset({"up", "ALERTS", "scrape_duration_seconds", "scrape_samples_scraped"})  # its own series
VARIABLES = (  # of Grafana, and a value
    (r"\$\{?__(rate_interval|interval|range)\}?", "5m"),
    (r"\$\{?\w+\}?", "x"),
)


@dataclass(frozen=True, slots=True)
class Query:
    where: str
    expr: str


def of_scalers(manifests: Manifests) -> Iterator[Query]:
    for scaler in manifests.of("ScaledObject"):
        for trigger in scaler["spec"]["triggers"]:
            yield Query(f"{shown(scaler)}: trigger {trigger.get('name')}: query", trigger["metadata"]["query"])


def of_rules(folder: Path) -> Iterator[Query]:
    for file in sorted(folder.glob("*.y*ml")):
        for rule in _rules(file):
            yield Query(f"{file.name}: rule {rule.get('record') or rule.get('alert')}: expr", rule["expr"])


def recorded(folder: Path) -> frozenset[str]:
    """Series that the rules make."""
    return frozenset(rule["record"] for file in folder.glob("*.y*ml") for rule in _rules(file) if "record" in rule)


def of_dashboards(folder: Path) -> Iterator[Query]:
    for file in sorted(folder.glob("*.json")):
        for title, expr in _targets(json.loads(file.read_text(encoding="utf-8")), file.stem):
            yield Query(f"{file.name}: panel {title!r}: expr", expr)


def unknown(queries: Iterable[Query], series: Series, made: frozenset[str] = frozenset()) -> list[str]:
    """made: series of recording rules."""
    return [f"{query.where}: {sentence}" for query in queries for sentence in _in(query.expr, series, made)]


def _in(expr: str, series: Series, made: frozenset[str]) -> Iterator[str]:
    try:
        selectors = list(selected(expr))
    except ValueError as error:
        yield f"no PromQL: {error}"
        return
    for name, names in selectors:
        if name in made or name in PROMETHEUS:
            continue
        if name not in series:
            yield f"no process shows a metric {name}: take a name from /metrics"
        elif strange := names - series[name] - SCRAPED:
            yield f"{name} has no label {', '.join(sorted(strange))}: it has {', '.join(sorted(series[name]))}"


def selected(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Metric and labels of each selector. Raises ValueError where it does not parse."""
    for pattern, value in VARIABLES:
        expr = re.sub(pattern, value, expr)
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expr), visit)
    for selector in found:
        matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        yield selector.name or matchers.get("__name__", ""), matchers.keys() - {"__name__"}


def _rules(file: Path) -> Iterator[dict[str, Any]]:
    for group in (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("groups", []):
        yield from group["rules"]


def _targets(node: Any, title: str) -> Iterator[tuple[str, str]]:
    """Every `expr` in a dashboard, under the title of its panel."""
    if isinstance(node, dict):
        title = node.get("title") or title
        if isinstance(node.get("expr"), str) and node["expr"].strip():
            yield title, node["expr"]
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _targets(child, title)
