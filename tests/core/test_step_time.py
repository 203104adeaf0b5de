"""The table of step times: what it says between and beyond what was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.step_time import FLAT, UNMEASURED, StepTimeTable, most_rows

TABLE = StepTimeTable.of((1, 4, 8), (100, 1000), [[1.0, 2.0], [1.3, 2.6], [2.5, 5.0]])


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [
        (1, 100, 1.0),
        (8, 1000, 5.0),
        (2, 100, 1.1),
        (6, 100, 1.9),
        (1, 550, 1.5),
        (6, 550, (1.9 + 3.8) / 2),
        (2.5, 1000, 2.3),
        (12, 100, 3.7),  # the last line goes on
        (4, 0, 1.3),
        (4, 9999, 2.6),
    ],
)
def test_lines_between_the_knots_and_what_is_known_beyond_them(rows: float, context: float, seconds: float) -> None:
    assert TABLE.estimate(rows, context) == pytest.approx(seconds)


def test_one_point_is_a_table() -> None:
    assert StepTimeTable.of((4,), (0,), [[0.5]]).estimate(9, 7) == 0.5


def test_a_forward_that_was_disturbed_is_no_longer_than_a_larger_one() -> None:
    table = StepTimeTable.of((1, 2, 4), (0, 9), [[1.0, 9.0], [5.0, 1.5], [1.2, 2.0]])
    assert table.seconds == ((1.0, 1.5), (1.2, 1.5), (1.2, 2.0))


@st.composite
def tables(draw: st.DrawFn) -> StepTimeTable:
    rows = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=6)))
    contexts = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=4)))
    times = st.lists(st.floats(1e-4, 10), min_size=len(contexts), max_size=len(contexts))
    return StepTimeTable.of(rows, contexts, [draw(times) for _ in rows])


@given(tables(), st.floats(0, 1))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_an_estimate_falls_neither_with_rows_nor_with_context(table: StepTimeTable, share: float) -> None:
    """The latter as far as rows were measured."""
    rows = [table.estimate(n, 400 * share) for n in range(1, 400, 19)]
    contexts = [table.estimate(table.rows[0] + share * (table.rows[-1] - table.rows[0]), n) for n in range(0, 400, 19)]
    for line in (rows, contexts):
        assert line[0] > 0
        assert all(b >= a * (1 - 1e-9) for a, b in pairwise(line))


def test_without_a_measurement_weights_cost_as_much_as_some_rows() -> None:
    for rows in (1, 7, 500, 10_000):
        assert UNMEASURED.estimate(rows, 123) == pytest.approx(FLAT + rows)


def test_rows_that_saturate() -> None:
    """Rates 1, 4, 16, 21, 22: 16 is too little, from 21 on nothing much comes."""
    table = StepTimeTable.of((1, 4, 16, 32, 64), (0,), [[1.0], [1.0], [1.0], [32 / 21], [64 / 22]])
    assert table.saturating_rows(0.9) == 32
    assert table.saturating_rows(0.99) == 64
    assert StepTimeTable.of((1,), (0,), [[1.0]]).saturating_rows(0.9) == 1


@given(st.integers(0, 50), st.integers(0, 60))
def test_the_most_rows_that_fit(limit: int, most: int) -> None:
    assert most_rows(limit, lambda rows: rows <= most) == min(limit, most)
