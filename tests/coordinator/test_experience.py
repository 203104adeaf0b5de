from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from coordinator.experience import TRIED_AGAIN, TRIED_SOON, Experience, Learning
from coordinator.served import ServedDrafter
from coordinator.turn import Turn
from specdec.core.sampling import SamplingParams
from specdec.core.source_record import TRIALS, CycleOutcome, Offer

READER = ServedDrafter("eagle", nodes=32, window=1 << 30, tree=False, shares=True)
TURN = Turn(params=SamplingParams(temperature=0.0), seed=1, max_tokens=8)
PLAIN = CycleOutcome(asked=0, depth=0, rows=1, accepted=0, verify_seconds=0.01)
EAGLE, LM = Offer("eagle", 8, shares=True), Offer("lm", 8, shares=True)
COPY = Offer("ngram:long", 8, matched=8, local=True)


def drafted(accepted: int, drafter: str = "eagle") -> CycleOutcome:
    """Two draft tokens at half a step's cost."""
    return replace(PLAIN, asked=2, depth=2, rows=3, accepted=accepted, drafter=drafter, draft_seconds=0.005, paid=0.005)


def teach(experience: Experience, accepted: int, cycles: int = 30) -> None:
    with experience.turn(TURN) as learning:
        for number in range(cycles):
            learning.observe(drafted(accepted) if number % 2 else PLAIN)


def wants(experience: Experience, *, named: bool = False) -> bool:
    with experience.turn(TURN) as learning:
        return learning.wants_features([READER], 10, named=named)


def choose(learning: Learning, offers: Sequence[Offer] = (EAGLE,)) -> str:
    offer, k = learning.choose(offers, 8, 10, None)
    return offer.source if offer is not None and k else ""


@pytest.mark.parametrize(("accepted", "pays"), [(0, False), (2, True)])
def test_hidden_states_are_asked_for_where_a_drafter_that_reads_them_pays(accepted: int, pays: bool) -> None:
    experience = Experience()
    assert wants(experience), "nothing is known yet"
    teach(experience, accepted)
    asked = [wants(experience) for _ in range(2 * TRIED_AGAIN)]
    assert all(asked) if pays else np.count_nonzero(asked) == 2


def test_a_drafter_of_which_nothing_is_known_is_let_see_them_in_one_turn_of_a_few() -> None:
    """A fresh coordinator tries its drafters one after the other: until then hidden states would cost every turn."""
    experience = Experience()
    asked = [wants(experience) for _ in range(2 * TRIED_SOON)]
    assert asked[0] and np.count_nonzero(asked) == 2
    assert all(wants(experience, named=True) for _ in range(TRIED_SOON)), "whoever names it waits for no turn"
    teach(experience, accepted=0)
    assert not all(wants(experience, named=True) for _ in range(2)), "unless it is known not to pay"


def test_in_company_a_draft_on_the_targets_processor_must_pay_for_all_who_wait() -> None:
    experience = Experience()
    teach(experience, accepted=2)
    with ExitStack() as turns:
        crowd = [turns.enter_context(experience.turn(TURN)) for _ in range(8)]
        assert not any(learning.wants_features([READER], 10) for learning in crowd)
        assert crowd[0].wants_features([replace(READER, shares=False)], 10), "elsewhere it costs the others nothing"
    assert wants(experience), "alone again"


def test_company_is_shared_by_the_verifiers() -> None:
    experience = Experience(lambda: 4)
    with ExitStack() as turns:
        for _ in range(8):
            turns.enter_context(experience.turn(TURN))
        assert experience.company == 2.0
    assert experience.company == 1.0


def test_where_no_drafter_reads_them_the_question_is_left_open() -> None:
    with Experience().turn(TURN) as learning:
        assert learning.wants_features([], 10)


@pytest.mark.parametrize(
    ("taught", "asked", "same"),
    [(0.0, 0.0, True), (0.0, 1.0, False), (0.6, 1.0, False), (0.6, 0.65, True), (3.0, 5.0, True)],
)
def test_kinds_of_turns_learn_apart(taught: float, asked: float, same: bool) -> None:
    """What is drafted well for a cool target is not for a warm one."""
    experience = Experience()
    first, second = (replace(TURN, params=SamplingParams(temperature=t)) for t in (taught, asked))
    with experience.turn(first) as learning:
        learning.observe(drafted(2))
    with experience.turn(second) as learning:
        assert bool(learning.planner.sources) is same


def test_one_session_at_a_time_tries_what_nobody_knows() -> None:
    experience = Experience()
    with experience.turn(TURN) as first, experience.turn(TURN) as second:
        assert choose(first) == "eagle"
        assert choose(second) == ""
        assert choose(second, [EAGLE, LM]) == "lm", "another drafter may be tried meanwhile"
        assert choose(first, [COPY]) == "ngram:long" and choose(second, [COPY]) == "", "rows are paid by all, whosever"
        first.observe(drafted(2))
        assert choose(second) == "eagle"


def test_all_learn_from_a_trial_at_once() -> None:
    experience = Experience()
    with experience.turn(TURN) as first, experience.turn(TURN) as second:
        assert choose(first) == "eagle"
        first.observe(drafted(2))
        choose(second)
        assert second.planner.sources["eagle"].asks == 1
        assert choose(first, [LM]) == "lm"
        first.observe(drafted(2, "lm"))
        choose(second, [LM])
        assert second.planner.sources["lm"].asks == 1


def test_what_is_known_is_asked_for_by_all_at_once() -> None:
    experience = Experience()
    with experience.turn(TURN) as learning:
        for _ in range(TRIALS):
            learning.observe(drafted(2))
    with experience.turn(TURN) as first, experience.turn(TURN) as second:
        assert [choose(first), choose(second)] == ["eagle", "eagle"]


def test_a_turn_that_breaks_off_lets_go_of_its_trial() -> None:
    experience = Experience()
    with experience.turn(TURN) as second:
        with pytest.raises(RuntimeError), experience.turn(TURN) as first:
            assert choose(first) == "eagle"
            raise RuntimeError("the client has left")
        assert choose(second) == "eagle"


def test_a_turn_leaves_alone_what_others_found_out_meanwhile() -> None:
    """It ends last and never asked: what it began with is older."""
    experience = Experience()
    with experience.turn(TURN) as idle:
        idle.observe(PLAIN)
        teach(experience, accepted=2)
    with experience.turn(TURN) as learning:
        assert learning.planner.sources["eagle"].asks == 15
