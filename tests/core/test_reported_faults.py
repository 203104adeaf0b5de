"""PAIR-5: faults of public bug reports have the bias that scenarios.md gives in closed form, and the check
that passes the right rules refuses them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from specdec.core.laws import draw
from tests.core.integration import Floats, Law, assert_lawful, distance, outcome_law
from tests.core.test_wrong_rules import TARGET, P, Process, first, hashable, law, q_not_renormalised
from tests.core.toys import PAIR_5, Toy, constant

P5, Q5 = PAIR_5.p(()), PAIR_5.draft(())


@dataclass(frozen=True)
class Report:
    """process: the injector; total variation: its bias in closed form."""

    process: Process
    bias: float


def b01_filtered_draws_raw_q(us: Floats) -> tuple[list[int], int]:
    x = draw(np.array([2.0, 4.0, 0, 0, 0]), us[2])
    return [x], first([x], us, PAIR_5)


def b02_argmax_with_softmax(us: Floats) -> tuple[list[int], int]:
    return [1], first([1], us, PAIR_5)


def b03_rejection_draws_from_p(us: Floats) -> tuple[list[int], int]:
    x = draw(Q5.q, us[2])
    return [x], x if us[1] * Q5.q[x] < P5[x] else draw(P5, us[0])


def b05_q_0_means_accept(us: Floats) -> tuple[list[int], int]:
    x = draw(Q5.q, us[2])
    return [x], x


def b06_a_neighbours_q(us: Floats) -> tuple[list[int], int]:
    x = draw(Q5.q, us[2])
    return [x], first([x], us, constant("reversed", P5.tolist(), (2, 1, 1, 4, 2)))


def b07_a_target_draw_per_sibling(us: Floats) -> tuple[list[int], int]:
    """Siblings 1 and 0 win if a fresh draw of the target equals them; else one more draw."""
    ys = [draw(P5, us[1]), draw(P5, us[2])]
    return ys, 1 if ys[0] == 1 else 0 if ys[1] == 0 else draw(P5, us[0])


def b08_q_not_renormalised(us: Floats) -> tuple[list[int], int]:
    return q_not_renormalised(us, PAIR_5)


def b11_two_rules_or_ed(us: Floats) -> tuple[list[int], int]:
    x, y = draw(Q5.q, us[2]), draw(P5, us[3])
    return [x, y], x if y == x else first([x], us, PAIR_5)


REPORTS = [
    pytest.param(Report(b01_filtered_draws_raw_q, 0.252), marks=pytest.mark.scenario("B01")),
    pytest.param(Report(b02_argmax_with_softmax, 0.30), marks=pytest.mark.scenario("B02")),
    pytest.param(Report(b03_rejection_draws_from_p, 0.125), marks=pytest.mark.scenario("B03")),
    pytest.param(Report(b05_q_0_means_accept, 0.35), marks=pytest.mark.scenario("B05")),
    pytest.param(Report(b06_a_neighbours_q, 0.25), marks=pytest.mark.scenario("B06")),
    pytest.param(Report(b07_a_target_draw_per_sibling, 0.18), marks=pytest.mark.scenario("B07")),
    pytest.param(Report(b08_q_not_renormalised, 0.014), marks=pytest.mark.scenario("B08")),
    pytest.param(Report(b11_two_rules_or_ed, 0.048), marks=pytest.mark.scenario("B11")),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: r.process.__name__)
def test_a_reported_fault_has_its_known_bias_and_is_refused(report: Report) -> None:
    """PAIR-5 with the fault put in; the same check passes the rule without it (test_output_law)."""
    got, target = law(report.process), dict(enumerate(P5))
    assert distance(got, target) == pytest.approx(report.bias, abs=6e-3)
    with pytest.raises(AssertionError):
        assert_lawful(got, target)


def honest(us: Floats, toy: Toy) -> tuple[list[int], int]:
    x = draw(toy.draft(()).q, us[2])
    return [x], first([x], us, toy)


@pytest.mark.scenario("B01")
def test_a_filtered_draft_that_reports_its_filtered_law_is_exact() -> None:
    """Variant A of the report: top_k = 2 in the draft only, on ids that leave one outside (the sparse T3)."""
    filtered = constant("filtered", P.tolist(), (1, 3), (0, 2))
    assert_lawful(law(lambda us: honest(us, filtered), 3), TARGET)


@pytest.mark.scenario("B03")
def test_the_residual_of_pair_5_is_0_and_2_only() -> None:
    """norm((p - q)+) = (.857, 0, .143, 0, 0), within what float32 leaves of p."""
    rejected: Law = {}
    for (xs, token), mass in outcome_law(lambda us: hashable(honest(us, PAIR_5)), 3, cells=4).items():
        if xs[0] != token:
            rejected[token] = rejected.get(token, 0.0) + mass
    total = sum(rejected.values())
    assert total == pytest.approx(0.35, abs=1e-6)
    assert rejected[0] / total == pytest.approx(6 / 7, abs=1e-6)
    assert rejected[2] / total == pytest.approx(1 / 7, abs=1e-6)


@pytest.mark.scenario("B09")
def test_q_in_another_precision_than_the_draw_has_its_known_bias() -> None:
    """Drawn 50/50, reported .44/.56: bias .053. On the wire q is float16 and both sides use those bits."""
    two, even = constant("rounded", (0.5, 0.5), (0.44, 0.56)), np.array([1.0, 1.0])

    def wrong(us: Floats) -> tuple[list[int], int]:
        x = draw(even, us[2])
        return [x], first([x], us, two)

    target: Law = {0: 0.5, 1: 0.5}
    assert distance(law(wrong, 3), target) == pytest.approx(0.053, abs=1e-3)
    assert_lawful(law(lambda us: honest(us, two), 3), target)
    with pytest.raises(AssertionError):
        assert_lawful(law(wrong, 3), target)
