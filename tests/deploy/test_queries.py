"""What PromQL asks for is found wherever it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deploy.queries import Query, of_dashboards, of_rules, recorded, selected, unknown

SERIES = {
    "specdec_cycles_total": frozenset({"service_name"}),
    "specdec_phase_seconds_bucket": frozenset({"phase", "le"}),
}
RULES = """
groups:
  - name: specdec
    rules:
      - record: specdec:cycles:rate1m
        expr: sum(rate(specdec_cycles_total[1m]))
      - alert: Slow
        expr: specdec:cycles:rate1m < 1 and specdec_cycle_total > 0
"""


def test_every_selector_of_an_expression_is_found() -> None:
    expr = (
        'histogram_quantile(0.95, sum by (le) (rate(specdec_phase_seconds_bucket{phase="draft"}[$__rate_interval])))'
        ' / on() group_left max_over_time((specdec_cycles_total{pod=~"$pod"} offset 1w)[1h:1m]) or vector(0)'
    )
    assert dict(selected(expr)) == {"specdec_phase_seconds_bucket": {"phase"}, "specdec_cycles_total": {"pod"}}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("up", {("up", ())}),
        ('a{x="b", y=~"c|d"} > 1.5e3', {("a", ("x", "y"))}),
        ("sum by (le) (rate(a_bucket[5m] offset 1h))", {("a_bucket", ())}),
        ("(a + b) and on (instance) rate(c[2m]) == 0", {("a", ()), ("b", ()), ("c", ())}),
        ("job:a:rate5m / on () group_left () sum(b)", {("job:a:rate5m", ()), ("b", ())}),
        ('count by (x) (a{s="it\'s \\"b\\" {c}"}) or vector(0)', {("a", ("s",))}),
        ("sum(a)by(x) / sum(rate(b[$__rate_interval]))", {("a", ()), ("b", ())}),
    ],
)
def test_metrics_and_labels_are_found(expression: str, expected: set[tuple[str, tuple[str, ...]]]) -> None:
    assert {(name, tuple(sorted(labels))) for name, labels in selected(expression)} == expected


def test_rules_are_read_with_what_they_make(tmp_path: Path) -> None:
    Path(tmp_path, "specdec.yml").write_text(RULES)
    found = unknown(of_rules(tmp_path), SERIES, recorded(tmp_path))
    (sentence,) = found
    assert sentence.startswith("specdec.yml: rule Slow: expr: no process shows a metric specdec_cycle_total")


def test_a_panel_is_named_by_its_title_however_deep_it_lies(tmp_path: Path) -> None:
    panel = {"title": "Phases", "targets": [{"expr": 'rate(specdec_phase_seconds_bucket{kind="draft"}[5m])'}]}
    board = {"title": "specdec", "panels": [{"title": "Row", "panels": [panel]}]}
    Path(tmp_path, "users.json").write_text(json.dumps(board))
    (sentence,) = unknown(of_dashboards(tmp_path), SERIES)
    assert sentence.startswith("users.json: panel 'Phases': expr: specdec_phase_seconds_bucket has no label kind")


@pytest.mark.parametrize("expr", ["sum(", "rate(specdec_cycles_total)", "specdec_cycles_total{", ""])
def test_what_does_not_parse_is_no_promql(expr: str) -> None:
    (sentence,) = unknown([Query("here", expr)], SERIES)
    assert sentence.startswith("here: no PromQL")
