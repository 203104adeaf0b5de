"""What runs with and without speculation say together."""

from __future__ import annotations

import pytest

from protos.generation_pb2 import DraftStats
from specdec.edge.comparison import Comparison, Run, exact_alpha

MEASURED = DraftStats(exact_alpha_sum=6.0, exact_alpha_count=10, reached_per_position=[6, 4])
COUPLED = DraftStats(reached_per_position=[50, 30])


def test_exact_alpha_is_the_mean_over_all_answers() -> None:
    other = DraftStats(exact_alpha_sum=1.0, exact_alpha_count=10, reached_per_position=[10])
    assert exact_alpha([MEASURED, other]) == pytest.approx(0.35)


@pytest.mark.parametrize("answers", [[COUPLED], [MEASURED, COUPLED], [DraftStats()], []])
def test_few_measured_positions_do_not_speak_for_the_rest(answers: list[DraftStats]) -> None:
    assert exact_alpha(answers) is None


def test_a_comparison_counts_the_speculative_runs_alone() -> None:
    plain = Run((1, 2, 3), 2.0, COUPLED)
    comparison = Comparison("copying", (Run((1, 2, 3), 1.0, MEASURED),), (plain,))
    assert comparison.exact_alpha == pytest.approx(0.6)
    assert comparison.ratio == pytest.approx(2.0)
    assert comparison.identical
