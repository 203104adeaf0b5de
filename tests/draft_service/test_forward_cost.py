"""Estimates of forwards: right where measured, careful beyond, never stuck."""

from __future__ import annotations

import pytest

from draft_service.drafters.forward_cost import ForwardCost


def learned(points: dict[int, float]) -> ForwardCost:
    cost = ForwardCost()
    for rows, seconds in points.items():
        cost.observe(rows, seconds)
    return cost


def test_nothing_known_costs_nothing() -> None:
    assert ForwardCost().estimate(1000) == 0.0
    assert ForwardCost().rows_within(0.001, 64) == 64


def test_an_estimate_lies_on_the_line_between_what_was_measured() -> None:
    cost = learned({1: 0.010, 101: 0.110})
    assert cost.estimate(1) == 0.010
    assert cost.estimate(51) == pytest.approx(0.060)
    assert cost.estimate(202) == pytest.approx(0.220)


def test_a_mean_moves_towards_the_newest_and_no_size_speaks_for_another() -> None:
    cost = learned({1: 0.010, 64: 0.050})
    cost.observe(64, 0.100)
    assert cost.estimate(64) == pytest.approx(0.060)
    assert cost.estimate(1) == 0.010


@pytest.mark.parametrize(("seconds", "rows"), [(1.0, 64), (0.1, 64), (0.045, 32), (0.0111, 1), (0.0109, 0), (0.0, 0)])
def test_rows_are_halved_until_they_fit(seconds: float, rows: int) -> None:
    cost = learned({n: 0.010 + 0.001 * n for n in (1, 2, 4, 8, 16, 32, 64)})
    assert cost.rows_within(seconds, 64) == rows


def test_doubt_lets_every_size_be_tried_again_in_the_end() -> None:
    cost = learned({1: 5.0, 64: 5.0})
    tries = 0
    while not cost.rows_within(0.1, 64):
        cost.doubt()
        tries += 1
    assert 10 < tries < 25
