"""Names are found wherever they stand in an expression, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from tests.observability.promql import Selector, selectors


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
    assert set(selectors(expression)) == {Selector(name, frozenset(labels)) for name, labels in expected}
