from __future__ import annotations

import pytest

from benchmarks.autoscale.functions import QueryError
from benchmarks.autoscale.promql import parse
from benchmarks.autoscale.samples import Labels, Samples

A, B = frozenset([("pod", "a"), ("cause", "late")]), frozenset([("pod", "b"), ("cause", "lost")])


@pytest.fixture
def samples() -> Samples:
    """A minute in steps of ten seconds. Counters: a grows by 2 a second, b by 1; gauges: 3 and 5; a histogram with ten
    observations up to 1, thirty from 1 to 2, none above."""
    found = Samples()
    for step in range(7):
        now = 10.0 * step
        series: list[tuple[str, Labels, float]] = [
            ("counter", A, 100 + 2 * now),
            ("counter", B, 100 + now),
            ("gauge", A, 3.0),
            ("gauge", B, 5.0),
        ]
        for le, count in (("1.0", 10), ("2.0", 40), ("+Inf", 40)):
            series.append(("hist_bucket", A | {("le", le)}, float(count * step)))
        found.scrape(now, series)
    return found


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("sum(gauge)", 8.0),
        ("avg(gauge)", 4.0),
        ("max(gauge) - min(gauge)", 2.0),
        ("count(gauge)", 2.0),
        ('sum(gauge{pod="a"})', 3.0),
        ('sum(gauge{cause=~"late|lost",pod!="a"})', 5.0),
        ('sum(gauge{cause!~"late.*"})', 5.0),
        ('sum(gauge{nobody="has it"}) or vector(0)', 0.0),
        ("sum(gauge) or vector(0)", 8.0),
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * 3 / 2", 4.5),
        ("-2 * sum(gauge)", -16.0),
        ("sum(gauge / gauge)", 2.0),
        ("clamp_min(sum(gauge), 10)", 10.0),
        ("clamp_max(sum(gauge), 7)", 7.0),
        ("sum(gauge > 4)", 5.0),
        ("sum(rate(counter[30s]))", 3.0),
        ('sum(increase(counter{pod="b"}[30s]))', 30.0),
        ("sum by (pod) (gauge{pod='a'})", 3.0),
        ("sum(sum(gauge) without (cause))", 8.0),
        ("sum(max_over_time(counter[1m]))", 220.0 + 160.0),
        ("histogram_quantile(0.25, sum by (le) (rate(hist_bucket[1m])))", 1.0),
        ("histogram_quantile(0.625, sum by (le) (rate(hist_bucket[1m])))", 1.5),
        ("histogram_quantile(1, sum by (le) (rate(hist_bucket[1m])))", 2.0),
    ],
)
def test_a_query_has_the_value_that_prometheus_gives(samples: Samples, query: str, value: float) -> None:
    assert parse(query).value(samples, 60.0) == pytest.approx(value)


@pytest.mark.parametrize(
    "query", ["sum(nothing)", "sum(rate(counter[5s]))", "0 / 0", "1 / 0", "sum(gauge{pod='c'}) / sum(gauge)"]
)
def test_no_value_is_none_and_so_is_what_is_no_number(samples: Samples, query: str) -> None:
    assert parse(query).value(samples, 60.0) is None


def test_a_counter_that_just_began_is_not_drawn_out_to_before_it_was_zero() -> None:
    """Two scrapes of a pod that began 5 seconds before the first: 1 a second from then on."""
    young = Samples()
    for now in (45.0, 55.0):
        young.scrape(now, [("counter", A, now - 40.0)])
    assert parse("sum(increase(counter[1m]))").value(young, 60.0) == pytest.approx(20.0)


def test_pods_that_are_gone_are_in_no_instant_but_still_in_a_range(samples: Samples) -> None:
    samples.scrape(70.0, [("gauge", A, 3.0)])
    assert parse("sum(gauge)").value(samples, 70.0) == 3.0
    assert parse("count(max_over_time(gauge[30s]))").value(samples, 70.0) == 2.0


def test_a_query_tells_what_it_reads() -> None:
    query = parse('sum by (le) (rate(a_total{x="1"}[1m])) / on_time')
    assert query.metrics == {"a_total", "on_time"} and query.labels == {"le", "x"}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("topk(3, gauge)", "topk"),
        ("sum(gauge", "the end"),
        ("sum(gauge) gauge", "gauge"),
        ("sum(gauge{pod>1})", ">"),
        ("sum(gauge) $ 3", r"\$"),
        ("rate(counter)", "range"),
    ],
)
def test_what_is_not_simulated_is_named(query: str, named: str) -> None:
    with pytest.raises(QueryError, match=named):
        parse(query)


def test_several_results_are_no_value(samples: Samples) -> None:
    with pytest.raises(QueryError, match="2 results"):
        parse("gauge").value(samples, 60.0)
