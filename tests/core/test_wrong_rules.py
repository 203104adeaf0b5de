"""Negative controls: deliberately wrong rules yield the laws tabulated in algorithms.md, section 14, and the
check that passes the right rules refuses every one of them. Where the fault lies around the rule (draws,
order, reported law), the production rule runs with the fault put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from specdec.core.acceptance import emitted, token_rule
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.laws import draw, draw_siblings
from specdec.core.tree import DraftTree
from specdec.core.verification import TargetLaw, Verification, VerifyForm
from tests.core.integration import Floats, Law, assert_lawful, distance, outcome_law
from tests.core.toys import SPARSE_T3, T3, Toy, target_law

SAMPLED, WITHOUT = DraftKind.SAMPLED, DraftKind.SAMPLED_WITHOUT_REPLACEMENT
P, Q = T3.p(()), T3.draft(())
Process = Callable[[Floats], tuple[Sequence[int], int]]  # the draft as drawn (so that it shows), the first token


def first(
    xs: Sequence[int],
    us: Sequence[float] | Floats,
    toy: Toy = T3,
    kind: DraftKind = SAMPLED,
    *,
    tail: float | None = None,
) -> int:
    """The first token that the production rule emits when the siblings xs (indices into the support) were
    drafted and us = (residual's number, one per sibling). The sparse T3's outside holds one token, so z is
    known."""
    law = toy.draft(())
    tree = DraftTree(law.ids[list(xs)], np.zeros(len(xs), np.int64))
    target, outside = target_law(toy.target(()), law)
    if tail is not None:
        target = TargetLaw(target.ids, target.p, tail)
    drawn = np.full(tree.num_nodes, np.argmax(outside), np.uint32)
    draft, reply = Draft(tree, kind, (law,)), Verification(VerifyForm.PQ, drawn, (target,))
    numbers = np.array([us[i] for i in range(tree.num_nodes)])
    return int(emitted(draft, token_rule(draft, reply, numbers))[0])


def residual(p: Floats, q: Floats) -> Floats:
    return np.maximum(p - q, 0.0)


def without(q: Floats, x: int) -> Floats:
    rest = q.copy()
    rest[x] = 0.0
    rest /= rest.sum()
    return rest


# One sibling. us[0], us[1]: residual and acceptance; us[2]: the draw of the draft token.


def right(us: Floats) -> tuple[list[int], int]:
    x = draw(Q.q, us[2])
    return [x], first([x], us)


def rejection_draws_from_p(us: Floats) -> tuple[list[int], int]:
    x = draw(Q.q, us[2])
    return [x], x if us[1] * Q.q[x] < P[x] else draw(P, us[0])


def u_reused_in_the_residual(us: Floats) -> tuple[list[int], int]:
    x = draw(Q.q, us[2])
    return [x], first([x], [us[1], us[1]])


def u_reused_for_draft_and_accept(us: Floats) -> tuple[list[int], int]:
    x = draw(Q.q, us[1])
    return [x], first([x], us)


def drawn_from_the_top_2_judged_with_the_raw_q(us: Floats) -> tuple[list[int], int]:
    x = draw(np.array([1.0, 0.0, 3.0]), us[2])
    return [x], first([x], us)


def argmax_judged_with_its_softmax(us: Floats) -> tuple[list[int], int]:
    return [2], first([2], us)


def tail_forgotten(us: Floats) -> tuple[list[int], int]:
    """On the sparse T3, S = {2, 0}: the residual of the support alone."""
    law, p = SPARSE_T3.draft(()), P[[2, 0]]
    x = draw(law.q, us[2])
    return [x], int(law.ids[x if us[1] * law.q[x] < p[x] else draw(residual(p, law.q), us[0])])


def z_always_emitted(us: Floats) -> tuple[list[int], int]:
    law, p = SPARSE_T3.draft(()), P[[2, 0]]
    x = draw(law.q, us[2])
    return [x], int(law.ids[x]) if us[1] * law.q[x] < p[x] else 1


def any_of_3_target_draws_matches(us: Floats) -> tuple[list[int], int]:
    ys = [draw(P, u) for u in (us[0], us[1], us[2])]
    return ys, 0 if 0 in ys else ys[0]


def dropped_when_q_is_low(us: Floats) -> tuple[list[int], int]:
    x = draw(Q.q, us[2])
    return [x], draw(P, us[0]) if Q.q[x] < 0.5 else first([x], us)


# Two siblings. us[0]: residual; us[1], us[2]: acceptance; us[3], us[4]: draws.


def pair(us: Floats, law: DraftLaw = Q) -> list[int]:
    return draw_siblings(law, np.array([us[3], us[4]]))


def right_without_replacement(us: Floats) -> tuple[list[int], int]:
    xs = pair(us)
    return xs, first(xs, us, kind=WITHOUT)


def right_with_replacement(us: Floats) -> tuple[list[int], int]:
    xs = [draw(Q.q, us[3]), draw(Q.q, us[4])]
    return xs, first(xs, us)


def sorted_by_q(us: Floats) -> tuple[list[int], int]:
    xs = pair(us)
    return xs, first(sorted(xs, key=lambda x: (-Q.q[x], x)), us, kind=WITHOUT)


def sorted_by_id(us: Floats) -> tuple[list[int], int]:
    xs = pair(us)
    return xs, first(sorted(xs), us, kind=WITHOUT)


def q_not_renormalised(us: Floats, toy: Toy = T3) -> tuple[list[int], int]:
    p, q = toy.p(()), toy.draft(()).q.copy()
    xs = pair(us, toy.draft(()))
    for x, u in zip(xs, (us[1], us[2]), strict=True):
        if u * q[x] < p[x]:
            return xs, x
        p = residual(p, q)
        p /= p.sum()
        q[x] = 0.0
    return xs, draw(p, us[0])


def judged_by_the_with_replacement_loop(us: Floats) -> tuple[list[int], int]:
    xs = pair(us)
    return xs, first(xs, us, kind=SAMPLED)


def duplicates_merged(us: Floats) -> tuple[list[int], int]:
    xs = [draw(Q.q, us[3]), draw(Q.q, us[4])]
    return xs, first(list(dict.fromkeys(xs)), us)


def siblings_judged_independently(us: Floats) -> tuple[list[int], int]:
    """Each against the target law itself; if none passes, the first residual."""
    q, xs = Q.q, pair(us)
    for x, u in zip(xs, (us[1], us[2]), strict=True):
        if u * q[x] < P[x]:
            return xs, x
        q = without(q, x)
    return xs, draw(residual(P, Q.q), us[0])


def siblings_share_u(us: Floats) -> tuple[list[int], int]:
    xs = pair(us)
    return xs, first(xs, [us[0], us[1], us[1]], kind=WITHOUT)


def siblings_share_the_draft_number(us: Floats) -> tuple[list[int], int]:
    xs = draw_siblings(Q, np.array([us[3], us[3]]))
    return xs, first(xs, us, kind=WITHOUT)


def best_of_two_drafts_by_q(us: Floats) -> tuple[list[int], int]:
    """Two are drawn, the likelier is kept (the first of equals)."""
    xs = pair(us)
    return xs, first([max(xs, key=lambda x: Q.q[x])], us)


def longer_of_two_raced_trees(us: Floats) -> tuple[list[int], int]:
    """The second tree's result counts if the first accepts nothing."""
    a, b = draw(Q.q, us[3]), draw(Q.q, us[4])
    return [a, b], a if us[1] * Q.q[a] < P[a] else first([b], [us[0], us[2]])


TABLE: dict[Process, tuple[float, float, float]] = {
    rejection_draws_from_p: (0.40, 0.32, 0.28),
    u_reused_in_the_residual: (0.45, 0.35, 0.20),
    u_reused_for_draft_and_accept: (0.65, 0.35, 0.0),
    drawn_from_the_top_2_judged_with_the_raw_q: (0.625, 0.125, 0.25),
    tail_forgotten: (0.80, 0.0, 0.20),
    z_always_emitted: (0.25, 0.55, 0.20),
    argmax_judged_with_its_softmax: (0.5, 1 / 6, 1 / 3),
    sorted_by_q: (0.55, 0.15, 0.30),
    sorted_by_id: (0.55, 0.45, 0.0),
    q_not_renormalised: (0.40, 0.40, 0.20),
    judged_by_the_with_replacement_loop: (0.40, 0.40, 0.20),
    duplicates_merged: (0.46, 0.34, 0.20),
    siblings_judged_independently: (0.46, 0.34, 0.20),
    siblings_share_u: (0.55, 0.25, 0.20),
    siblings_share_the_draft_number: (0.4333333, 0.3666667, 0.20),
    any_of_3_target_draws_matches: (0.875, 0.075, 0.05),
    dropped_when_q_is_low: (0.5, 0.22, 0.28),
    best_of_two_drafts_by_q: (0.5, 0.2, 0.3),
    longer_of_two_raced_trees: (0.4, 0.32, 0.28),
}
TARGET: Law = dict(enumerate(P))


def law(process: Process, n: int = 5) -> Law:
    """Of the first token."""
    law: Law = {}
    for (_, token), mass in outcome_law(lambda us: hashable(process(us)), n, cells=16).items():
        law[token] = law.get(token, 0.0) + mass
    return law


def hashable(result: tuple[Sequence[int], int]) -> tuple[tuple[int, ...], int]:
    return tuple(result[0]), result[1]


@pytest.mark.parametrize("process", TABLE, ids=lambda p: p.__name__)
def test_a_wrong_rule_yields_its_tabulated_law_and_is_refused(process: Process) -> None:
    got = law(process)
    assert distance(got, dict(enumerate(TABLE[process]))) < 1e-6
    with pytest.raises(AssertionError):
        assert_lawful(got, TARGET)


def test_a_forgotten_tail_never_reaches_the_rule() -> None:
    """The production rule normalises what it is given, so the fault must be caught in the answer; and it is:
    test_acceptance refuses "tail forgotten"."""

    def process(us: Floats) -> tuple[list[int], int]:
        x = draw(SPARSE_T3.draft(()).q, us[2])
        return [x], first([x], us, SPARSE_T3, tail=0.0)

    with pytest.raises(AssertionError):
        assert_lawful(law(process), TARGET)


@pytest.mark.parametrize(
    "process", [right, right_without_replacement, right_with_replacement], ids=lambda p: p.__name__
)
def test_the_same_processes_without_a_fault_pass(process: Process) -> None:
    assert_lawful(law(process), TARGET)
