"""Rules and dashboards as they are kept, read for the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import queries
from tests.metrics import Series, declared
from tests.observability.prometheus import OBSERVABILITY, RULES

DASHBOARDS = OBSERVABILITY / "grafana" / "dashboards"


@dataclass(frozen=True, slots=True)
class Panel:
    dashboard: str
    content: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.dashboard}: {self.content.get('title') or self.content.get('id')}"

    @property
    def expressions(self) -> list[str]:
        return [target["expr"] for target in self.content.get("targets", [])]


def read_yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def rules(kind: str) -> list[dict[str, Any]]:
    """kind: "alert" or "record"."""
    groups = [group for file in sorted(RULES.glob("*.yml")) for group in read_yaml(file)["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def recorded() -> frozenset[str]:
    return queries.recorded(RULES)


def unknown(expression: str) -> list[str]:
    """What a query reads that is neither exported nor recorded, and why it is no query if it is none."""
    return queries.unknown([queries.Query("", expression)], _exported(), recorded())


@cache
def _exported() -> Series:
    return declared()


def dashboards() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(DASHBOARDS.glob("*.json"))}


def panels() -> Iterator[Panel]:
    for name, content in dashboards().items():
        yield from (Panel(name, panel) for panel in content["panels"])
