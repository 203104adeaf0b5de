from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator.experience import TRIED_AGAIN, Experience
from coordinator.turn import Turn
from specdec.core.planner import Planner, observe
from specdec.core.sampling import SamplingParams
from specdec.core.source_record import CycleOutcome
from specdec.edge.messages import DrafterInfo

READER = DrafterInfo("eagle", feature_layers=(2,), feature_size=8)
TURN = Turn(params=SamplingParams(temperature=0.0), seed=1, max_tokens=8)


def taught(accepted: int, cycles: int = 30) -> Planner:
    """A planner whose reader had so many of two draft tokens accepted, at half a step's cost."""
    planner = Planner()
    plain = CycleOutcome(asked=0, depth=0, rows=1, accepted=0, verify_seconds=0.01)
    drafted = replace(
        plain, asked=2, depth=2, rows=3, accepted=accepted, drafter="eagle", draft_seconds=0.005, paid=0.005
    )
    for number in range(cycles):
        planner = observe(planner, drafted if number % 2 else plain)
    return planner


@pytest.mark.parametrize(("accepted", "pays"), [(0, False), (2, True)])
def test_hidden_states_are_asked_for_where_a_drafter_that_reads_them_pays(accepted: int, pays: bool) -> None:
    experience = Experience()
    assert experience.wants_features(experience.of(TURN), [READER], 10), "nothing is known yet"
    experience.keep(TURN, taught(accepted), Planner())
    asked = [experience.wants_features(experience.of(TURN), [READER], 10) for _ in range(2 * TRIED_AGAIN)]
    assert all(asked) if pays else np.count_nonzero(asked) == 2


def test_where_no_drafter_reads_them_the_question_is_left_open() -> None:
    assert Experience().wants_features(taught(0), [], 10)


def test_kinds_of_turns_learn_apart() -> None:
    experience = Experience()
    experience.keep(TURN, taught(2), Planner())
    sampled = replace(TURN, params=SamplingParams(temperature=1.0))
    assert experience.of(TURN).sources and not experience.of(sampled).sources
