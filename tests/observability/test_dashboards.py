"""Dashboards that Grafana can show and people can read, over metrics that exist."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.queries import selected
from tests.observability.documents import Panel, dashboards, panels, read_yaml, unknown
from tests.observability.prometheus import OBSERVABILITY, promtool

PANELS = list(panels())
PROVISIONING = OBSERVABILITY / "grafana" / "provisioning"


def queries(panel: Panel) -> list[str]:
    """As Prometheus gets them: Grafana's own variables filled in."""
    return [expression.replace("$__rate_interval", "1m") for expression in panel.expressions]


def test_there_is_one_for_users_one_for_speculation_and_one_for_pools() -> None:
    assert set(dashboards()) == {"users", "speculation", "pools"}
    assert {name: content["uid"] for name, content in dashboards().items()} == {n: f"specdec-{n}" for n in dashboards()}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.name)
def test_every_panel_has_title_description_unit_and_queries(panel: Panel) -> None:
    content = panel.content
    assert content["title"]
    assert len(content["description"]) > 10
    assert content["fieldConfig"]["defaults"]["unit"]
    assert content["fieldConfig"]["overrides"] == []
    assert content["type"] in ("timeseries", "stat", "heatmap")
    assert panel.expressions
    letters = [target["refId"] for target in content["targets"]]
    assert len(set(letters)) == len(letters)
    assert len(letters) == 1 or all(target["legendFormat"] for target in content["targets"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    apart = (
        one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in (("x", "w"), ("y", "h"))
    )
    return not any(apart)


@pytest.mark.parametrize("name", dashboards())
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    shown = [panel.content for panel in PANELS if panel.dashboard == name]
    assert len({panel["id"] for panel in shown}) == len({panel["title"] for panel in shown}) == len(shown)
    for one, other in combinations(shown, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in shown)
    assert all(a["gridPos"]["y"] <= b["gridPos"]["y"] for a, b in pairwise(shown)), "kept in the order that they show"


def test_overlapping_panels_are_seen() -> None:
    one: dict[str, int] = {"x": 0, "y": 0, "w": 8, "h": 8}
    assert overlap(one, one | {"x": 7, "y": 7})
    assert not overlap(one, one | {"x": 8})
    assert not overlap(one, one | {"y": 8})


def test_every_query_parses(tmp_path: Path) -> None:
    named = [(f"q:{n}", query) for n, query in enumerate(query for panel in PANELS for query in queries(panel))]
    file = tmp_path / "queries.yml"
    content = {"groups": [{"name": "queries", "rules": [{"record": name, "expr": query} for name, query in named]}]}
    file.write_text(yaml.safe_dump(content))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(named)} rules found" in done.stdout


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.name)
def test_every_query_reads_what_is_exported_or_recorded(panel: Panel) -> None:
    assert all([*selected(query)] for query in queries(panel)), "a query that reads nothing"
    assert [sentence for query in queries(panel) for sentence in unknown(query)] == []


def test_what_grafana_is_given_fits_together() -> None:
    sources: Any = read_yaml(PROVISIONING / "datasources" / "specdec.yml")["datasources"]
    assert [source["uid"] for source in sources if source.get("isDefault")] == ["prometheus"]
    assert all("datasource" not in panel.content for panel in PANELS), "panels take the default one"
    scraped = read_yaml(OBSERVABILITY / "prometheus.yml")["global"]["scrape_interval"]
    assert sources[0]["jsonData"]["timeInterval"] == scraped
    (provider,) = read_yaml(PROVISIONING / "dashboards" / "specdec.yml")["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
