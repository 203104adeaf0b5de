"""The figures of a profile on cycles whose truth is known."""

from __future__ import annotations

import math
import random

import pytest

from specdec.core.speedup import expected_tokens, speedup
from specdec.edge.profile.statistics import (
    branching,
    costs,
    counted_alpha,
    exact_alpha,
    geometric,
    predicted_speedup,
    predicted_tokens,
    predicted_tree_speedup,
    rate,
    survival,
    tokens_per_cycle,
)
from tests.edge.profile.made_up import STEP, Given, chains, cycle, plain

ALPHA, K = 0.8, 4


def test_independent_acceptances_agree_with_the_geometric_prediction() -> None:
    cycles = chains(ALPHA, K, 20_000)
    assert exact_alpha(cycles) == pytest.approx(ALPHA)
    assert counted_alpha(cycles) == pytest.approx(ALPHA, abs=0.01)
    assert survival(cycles, K) == pytest.approx(geometric(ALPHA, K), abs=0.015)
    assert tokens_per_cycle(cycles) == pytest.approx(expected_tokens(ALPHA, K), abs=0.03)
    assert predicted_tokens(ALPHA, cycles) == pytest.approx(expected_tokens(ALPHA, K))


def test_correlated_acceptances_show_as_a_gap_at_later_positions() -> None:
    """Texts of alpha 1 and of alpha 0.5 by turns: the first position is accepted as often as their mean says, the last
    far more often than its fourth power."""
    cycles = chains(1.0, K, 5_000) + chains(0.5, K, 5_000, seed=1)
    first, *_, last = survival(cycles, K)
    assert first == pytest.approx(0.75, abs=0.01)
    assert last is not None and last > geometric(0.75, K)[-1] + 0.15


def test_a_position_counts_only_the_drafts_that_were_so_long() -> None:
    cycles = [cycle(1, 1), cycle(3, 2), cycle(3, 3), cycle(0, 0)]
    assert survival(cycles, 4) == (1.0, 1.0, 0.5, None)
    assert counted_alpha(cycles) == pytest.approx(6 / 7), "six of seven judged: the leaf of an accepted path is none"


def test_nothing_measured_is_none_and_not_zero() -> None:
    assert exact_alpha([cycle(2, 1)]) is None
    assert counted_alpha(plain(3)) is None
    assert survival([], 1) == (None,)
    assert rate([]) == 0.0


def test_costs_are_in_plain_steps_whatever_pauses_there_were() -> None:
    given = Given(c=0.15, row=0.02, rho=0.3, rho_d=0.2)
    cycles = chains(ALPHA, K, 101, given)
    slow = chains(ALPHA, K, 3, Given(c=100.0, row=50.0))
    found = costs(cycles + slow, plain(50, rho=0.3))
    assert found.step == pytest.approx(STEP)
    assert (found.c, found.row, found.rho, found.rho_d) == pytest.approx((0.15, 0.02, 0.3, 0.2))


def test_the_predicted_speedup_is_what_independent_cycles_really_gain() -> None:
    given = Given(c=0.1, row=0.02, rho=0.5, rho_d=0.25)
    cycles, without = chains(ALPHA, K, 20_000, given), plain(1000, rho=0.5)
    found = costs(cycles, without)
    assert rate(cycles) / rate(without) == pytest.approx(predicted_speedup(ALPHA, cycles, found), rel=0.02)
    assert predicted_speedup(ALPHA, cycles, found) == pytest.approx(speedup(ALPHA, K, 0.12, 0.5, 0.25))


def test_cycles_in_which_nothing_was_found_to_draft_count_as_plain_ones() -> None:
    given = Given(c=0.01, row=0.02)
    cycles = [*chains(ALPHA, K, 5000, given), *plain(5000)]
    found = costs(cycles, plain(100))
    assert predicted_speedup(ALPHA, cycles, found) == pytest.approx(rate(cycles) / rate(plain(100)), rel=0.03)


def test_a_tree_is_priced_by_its_levels_and_its_nodes() -> None:
    chance = random.Random(3)
    given = Given(c=0.1, row=0.01, rho=0.2, rho_d=0.1)
    trees = [cycle(4, chance.randrange(5), None, given, nodes=20) for _ in range(500)]
    found = costs(trees, plain(100, rho=0.2))
    assert branching(trees) and not branching(chains(ALPHA, K, 5))
    assert predicted_tree_speedup(trees, found) == pytest.approx(rate(trees) / rate(plain(1, rho=0.2)), rel=0.01)


def test_a_drafter_that_never_drafted_has_no_finite_cost() -> None:
    found = costs(plain(5), plain(5))
    assert math.isinf(found.c)
    assert predicted_tree_speedup(plain(5), found) == 1.0
