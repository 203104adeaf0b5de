"""The integrator is the judge of all rules, so it is tried on laws known in closed form first."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.core.laws import draw
from tests.core.integration import Floats, assert_lawful, distance, outcome_law


def test_a_threshold_and_an_inverse_running_sum_get_their_exact_laws() -> None:
    weights = np.array([0.2, 0.0, 0.5, 0.3])

    def process(us: Floats) -> object:
        return "kept" if us[1] < 1 / 3 else draw(weights, us[0])

    law = outcome_law(process, 2)
    assert_lawful(law, {"kept": 1 / 3, 0: 0.2 * 2 / 3, 2: 0.5 * 2 / 3, 3: 0.3 * 2 / 3})


def test_a_rule_that_compares_all_its_uniforms_at_once_gets_its_exact_law() -> None:
    """As block verification does: the last i with u_i < h_i."""
    h = np.array([0.25, 0.5, 0.1])

    def process(us: Floats) -> object:
        passed = np.flatnonzero(us[1:] < h)
        tau = int(passed[-1]) + 1 if passed.size else 0
        return tau, draw(np.array([0.5, 0.5]), us[0])

    tau = {3: 0.1, 2: 0.9 * 0.5, 1: 0.9 * 0.5 * 0.25, 0: 0.9 * 0.5 * 0.75}
    assert_lawful(outcome_law(process, 4), {(t, y): m / 2 for t, m in tau.items() for y in (0, 1)})


def test_an_outcome_that_is_not_monotone_is_found_with_more_cells() -> None:
    def process(us: Floats) -> object:
        return 0.3 < us[0] < 0.4

    assert_lawful(outcome_law(process, 1, cells=16), {True: 0.1, False: 0.9})


def test_the_law_check_refuses_a_wrong_law_and_missing_mass() -> None:
    with pytest.raises(AssertionError, match="P"):
        assert_lawful({0: 0.5, 1: 0.5}, {0: 0.5 + 1e-6, 1: 0.5 - 1e-6})
    with pytest.raises(AssertionError, match="mass"):
        assert_lawful({0: 0.5}, {0: 0.5})
    assert distance({0: 0.5, 1: 0.5}, {0: 0.25, 2: 0.75}) == pytest.approx(0.75)
