"""The cost model by its worked examples."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.speedup import best_k, expected_tokens, speedup


@pytest.mark.parametrize(("alpha", "tokens", "gain"), [(0.75, 3.05, 2.18), (0.9, 4.10, 2.93), (0.5, 1.94, 1.38)])
def test_worked_examples_of_the_cost_model(alpha: float, tokens: float, gain: float) -> None:
    assert expected_tokens(alpha, 4) == pytest.approx(tokens, abs=0.005)
    assert speedup(alpha, 4, 0.1) == pytest.approx(gain, abs=0.008)


@pytest.mark.parametrize(("trip", "k"), [(0, 6), (1, 8), (4, 11)])
def test_worked_examples_of_the_best_k(trip: float, k: int) -> None:
    for share in (0.5, 1.0):
        assert best_k(0.8, 0.1, trip * share, trip * (1 - share), 20) == k


def test_a_drafter_farther_away_than_the_target_is_slow_is_not_asked() -> None:
    """The whole round trip of 4 on the drafter's side: plain decoding does not pay it."""
    assert best_k(0.8, 0.1, 0.0, 4.0, 20) == 0


def test_the_sequential_schedule_of_section_12() -> None:
    """alpha .8, c .15, rho = rho_d = .2: 1.72 tokens per target step at k = 6."""
    assert best_k(0.8, 0.15, 0.2, 0.2, 20) == 6
    assert speedup(0.8, 6, 0.15, 0.2, 0.2) / 1.2 == pytest.approx(1.72, abs=0.005)


@given(alpha=st.floats(0, 1), k=st.integers(0, 40))
@settings(derandomize=True, deadline=None)
def test_expected_tokens_is_the_closed_form_and_has_no_hole_at_1(alpha: float, k: int) -> None:
    got = expected_tokens(alpha, k)
    assert 1 <= got <= k + 1
    if alpha < 0.999:
        assert got == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))
    assert expected_tokens(1.0, k) == k + 1


def test_plain_decoding_is_the_unit_of_speedup() -> None:
    assert speedup(0.9, 0, 0.1, 3.0, 5.0) == 1.0
    assert best_k(0.0, 0.1, 0.0, 0.0, 10) == 0
    assert best_k(0.05, 0.2, 0.0, 1.0, 10) == 0
