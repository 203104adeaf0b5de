"""What a verifier may answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec.core.acceptance import check_verification
from specdec.core.draft import NO_DRAFT, Draft, DraftKind
from specdec.core.errors import ReplicaFault
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw, Verification, VerifyForm
from tests.core.toys import law_of

V = 6


def y_reply(*ys: int, child_p: list[float] | None = None) -> Verification:
    p = None if child_p is None else np.array(child_p, np.float32)
    return Verification(VerifyForm.Y, np.array(ys, np.uint32), child_p=p)


TREE = Draft(DraftTree(np.array([4, 2, 1, 3], np.uint32), np.array([0, 0, 1, 2])))
LAW = law_of([1, 1], [4, 2])
SAMPLE = Draft(DraftTree.chain([4, 2]), DraftKind.SAMPLED, (LAW, LAW))
P = TargetLaw(LAW.ids, np.array([0.5, 0.25], np.float32), 0.25)
GOOD_PQ = Verification(VerifyForm.PQ, np.array([0, 1, 4], np.uint32), (P, P))
GOOD_Y = y_reply(2, 0, 3, 0, 5, child_p=[0.25, 0.5, 0.125, 1.0])


def with_law(p: list[float] | None = None, tail: float | None = None, ids: list[int] | None = None) -> Verification:
    law = TargetLaw(
        P.ids if ids is None else np.array(ids, np.uint32),
        P.p if p is None else np.array(p, np.float32),
        P.tail if tail is None else tail,
    )
    return replace(GOOD_PQ, laws=(law, P))


def with_drawn(*drawn: int) -> Verification:
    return replace(GOOD_PQ, drawn=np.array(drawn, np.uint32))


BAD_PQ = {
    "another form": replace(GOOD_PQ, form=VerifyForm.Y),
    "a draw is missing": with_drawn(0, 1),
    "a draw too many": with_drawn(0, 1, 4, 4),
    "a law is missing": replace(GOOD_PQ, laws=(P,)),
    "law of another support": with_law(ids=[4, 3]),
    "support in another order": with_law(ids=[2, 4]),
    "p too short": with_law(p=[0.75]),
    "p is not a number": with_law(p=[np.nan, 0.5]),
    "p is infinite": with_law(p=[np.inf, 0.5]),
    "p is negative": with_law(p=[-0.25, 1.0]),
    "p above 1": with_law(p=[1.5, 0.0], tail=0.0),
    "mass .5": with_law(p=[0.25, 0.0]),
    "mass 1.2": with_law(p=[0.7, 0.25]),
    "no mass": with_law(p=[0.0, 0.0], tail=0.0),
    "tail forgotten": with_law(tail=0.0),
    "tail is not a number": with_law(tail=float("nan")),
    "tail is infinite": with_law(tail=float("inf")),
    "tail is negative": with_law(p=[0.75, 0.5], tail=-0.25),
    "outside sample inside": with_drawn(4, 1, 4),
    "outside sample missing": with_drawn(NO_OUTSIDE, 1, 4),
    "outside sample beyond the vocabulary": with_drawn(V, 1, 4),
    "leaf draw missing": with_drawn(0, 1, NO_OUTSIDE),
    "leaf draw beyond the vocabulary": with_drawn(0, 1, V),
}
TYPICAL = replace(GOOD_Y, form=VerifyForm.TYPICAL, entropies=np.array([0, 0.5, 1.0, 1.7, 0.1], np.float32))
BAD_TYPICAL = {
    "another form": replace(TYPICAL, form=VerifyForm.Y),
    "a draw is missing": replace(TYPICAL, drawn=TYPICAL.drawn[:4]),
    "draw beyond the vocabulary": replace(TYPICAL, drawn=np.array([2, 0, 3, 0, V], np.uint32)),
    "no child p": replace(TYPICAL, child_p=None),
    "child p too short": replace(TYPICAL, child_p=np.zeros(3, np.float32)),
    "child p is not a number": replace(TYPICAL, child_p=np.array([0.1, np.nan, 0, 0], np.float32)),
    "no entropies": replace(TYPICAL, entropies=None),
    "an entropy is missing": replace(TYPICAL, entropies=np.zeros(4, np.float32)),
    "an entropy is not a number": replace(TYPICAL, entropies=np.array([0, 0, np.nan, 0, 0], np.float32)),
    "an entropy is negative": replace(TYPICAL, entropies=np.array([0, 0, -0.5, 0, 0], np.float32)),
    "more entropy than the vocabulary holds": replace(TYPICAL, entropies=np.array([0, 0, 1.8, 0, 0], np.float32)),
}
BAD_Y = {
    "another form": replace(GOOD_Y, form=VerifyForm.PQ),
    "a draw is missing": y_reply(2, 0, 3, 0),
    "draw beyond the vocabulary": y_reply(2, 0, 3, 0, V),
    "child p too short": replace(GOOD_Y, child_p=np.zeros(3, np.float32)),
    "child p is not a number": replace(GOOD_Y, child_p=np.array([0.1, np.nan, 0, 0], np.float32)),
    "child p above 1": replace(GOOD_Y, child_p=np.array([0.1, 1.1, 0, 0], np.float32)),
    "child p negative": replace(GOOD_Y, child_p=np.array([0.1, -0.1, 0, 0], np.float32)),
}


@pytest.mark.scenario("B135")
@pytest.mark.parametrize("name", BAD_PQ)
def test_a_p_q_answer_that_must_not_be_judged_is_a_fault_of_the_replica(name: str) -> None:
    """NaN, negative, wrong sums, wrong shapes, draws that cannot be."""
    with pytest.raises(ReplicaFault):
        check_verification(SAMPLE, BAD_PQ[name], VerifyForm.PQ, V)


@pytest.mark.scenario("B135")
@pytest.mark.parametrize("name", BAD_Y)
def test_a_y_answer_that_must_not_be_judged_is_a_fault_of_the_replica(name: str) -> None:
    """The same for the y-form."""
    with pytest.raises(ReplicaFault):
        check_verification(TREE, BAD_Y[name], VerifyForm.Y, V)


@pytest.mark.scenario("B135")
@pytest.mark.parametrize("name", BAD_TYPICAL)
def test_a_typical_answer_that_must_not_be_judged_is_a_fault_of_the_replica(name: str) -> None:
    """And for typical acceptance."""
    with pytest.raises(ReplicaFault):
        check_verification(TREE, BAD_TYPICAL[name], VerifyForm.TYPICAL, V)


def test_sound_answers_pass() -> None:
    check_verification(TREE, TYPICAL, VerifyForm.TYPICAL, V)
    check_verification(SAMPLE, GOOD_PQ, VerifyForm.PQ, V)
    check_verification(SAMPLE, with_law(p=[0.5002, 0.25]), VerifyForm.PQ, V)
    no_tail = replace(with_law(p=[0.75, 0.25], tail=0.0), drawn=np.array([NO_OUTSIDE, 1, 4], np.uint32))
    check_verification(SAMPLE, no_tail, VerifyForm.PQ, V)
    check_verification(TREE, GOOD_Y, VerifyForm.Y, V)
    check_verification(TREE, replace(GOOD_Y, child_p=None), VerifyForm.Y, V)
    check_verification(NO_DRAFT, y_reply(V - 1), VerifyForm.Y, V)


def test_ids_beyond_the_vocabulary_have_no_target_mass() -> None:
    beyond = law_of([1, 0], [4, V + 1])
    draft = Draft(DraftTree.chain([4]), DraftKind.SAMPLED, (beyond,))
    for p, sound in (([0.5, 0.0], True), ([0.25, 0.25], False)):
        law = TargetLaw(beyond.ids, np.array(p, np.float32), 0.5)
        reply = Verification(VerifyForm.PQ, np.array([0, 1], np.uint32), (law,))
        if sound:
            check_verification(draft, reply, VerifyForm.PQ, V)
        else:
            with pytest.raises(ReplicaFault, match="beyond"):
                check_verification(draft, reply, VerifyForm.PQ, V)


def test_log_probabilities_are_checked_for_shape_and_numbers() -> None:
    def reply(drawn: int = 3, support: tuple[int, ...] = (2, 2), top: tuple[int, int] = (3, 2)) -> Verification:
        raw = Logprobs(
            np.zeros(drawn, np.float32),
            tuple(np.full(n, -np.inf, np.float32) for n in support),
            np.zeros(top, np.uint32),
            np.zeros(top, np.float32),
        )
        return replace(GOOD_PQ, logprobs=raw)

    check_verification(SAMPLE, reply(), VerifyForm.PQ, V)
    for bad in (reply(drawn=2), reply(support=(2,)), reply(support=(2, 3)), reply(top=(2, 2))):
        with pytest.raises(ReplicaFault):
            check_verification(SAMPLE, bad, VerifyForm.PQ, V)
    bad = reply()
    assert bad.logprobs is not None
    bad.logprobs.drawn[1] = np.nan
    with pytest.raises(ReplicaFault):
        check_verification(SAMPLE, bad, VerifyForm.PQ, V)
