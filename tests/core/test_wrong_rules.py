"""Negative controls: deliberately wrong rules yield the laws tabulated in algorithms.md, section 14, and the check
that passes the right rules refuses every one of them. Where the fault lies around the rule (draws, order, reported
law), the production rule runs with the fault put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from specdec.core.acceptance import emitted, token_rule
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.laws import draw, draw_siblings
from specdec.core.tree import DraftTree
from specdec.core.verification import TargetLaw, Verification, VerifyForm
from tests.core.integration import Floats, Law, assert_lawful, distance, outcome_law
from tests.core.toys import PAIR_5, SPARSE_T3, T3, Toy, constant, law_of, target_law

SAMPLED, WITHOUT = DraftKind.SAMPLED, DraftKind.SAMPLED_WITHOUT_REPLACEMENT
P, Q = T3.p(()), T3.draft(())
Process = Callable[[Floats], int]


def first(
    xs: Sequence[int], us: Sequence[float] | Floats, toy: Toy = T3, kind: DraftKind = SAMPLED, *, tail: float | None = None
) -> int:
    """The first token that the production rule emits when the siblings xs (indices into the support) were drafted and
    us = (residual's number, one per sibling). The sparse T3's outside holds one token, so z is known."""
    law = toy.draft(())
    tree = DraftTree(law.ids[list(xs)], np.zeros(len(xs), np.int64))
    target, outside = target_law(toy.target(()), law)
    if tail is not None:
        target = TargetLaw(target.ids, target.p, tail)
    drawn = np.full(tree.num_nodes, np.argmax(outside), np.uint32)
    draft = Draft(tree, kind, (law,))
    return int(emitted(draft, token_rule(draft, Verification(VerifyForm.PQ, drawn, (target,)), np.array(us)))[0])


def residual(p: Floats, q: Floats) -> Floats:
    return np.maximum(p - q, 0.0)


def without(q: Floats, x: int) -> Floats:
    rest = q.copy()
    rest[x] = 0.0
    return rest / rest.sum()


# One sibling. us[0], us[1]: residual and acceptance; us[2]: the draw of the draft token.


def right(us: Floats) -> int:
    return first([draw(Q.q, us[2])], [us[0], us[1]])


def rejection_draws_from_p(us: Floats) -> int:
    x = draw(Q.q, us[2])
    return x if us[1] * Q.q[x] < P[x] else draw(P, us[0])


def u_reused_in_the_residual(us: Floats) -> int:
    return first([draw(Q.q, us[2])], [us[1], us[1]])


def u_reused_for_draft_and_accept(us: Floats) -> int:
    return first([draw(Q.q, us[1])], [us[0], us[1]])


def drawn_from_the_top_2_judged_with_the_raw_q(us: Floats) -> int:
    return first([draw(np.array([1.0, 0.0, 3.0]), us[2])], [us[0], us[1]])


def argmax_judged_with_its_softmax(us: Floats) -> int:
    return first([2], [us[0], us[1]])


def tail_forgotten(us: Floats) -> int:
    """On the sparse T3, S = {2, 0}: the residual of the support alone."""
    law, p = SPARSE_T3.draft(()), P[[2, 0]]
    x = draw(law.q, us[2])
    return int(law.ids[x if us[1] * law.q[x] < p[x] else draw(residual(p, law.q), us[0])])


def z_always_emitted(us: Floats) -> int:
    law, p = SPARSE_T3.draft(()), P[[2, 0]]
    x = draw(law.q, us[2])
    return int(law.ids[x]) if us[1] * law.q[x] < p[x] else 1


def any_of_3_target_draws_matches(us: Floats) -> int:
    ys = [draw(P, u) for u in (us[0], us[1], us[2])]
    return 0 if 0 in ys else ys[0]


def dropped_when_q_is_low(us: Floats) -> int:
    x = draw(Q.q, us[2])
    return draw(P, us[0]) if Q.q[x] < 0.5 else first([x], [us[0], us[1]])


# Two siblings. us[0]: residual; us[1], us[2]: acceptance; us[3], us[4]: draws.


def pair(us: Floats, law: DraftLaw = Q) -> list[int]:
    return draw_siblings(law, np.array([us[3], us[4]]))


def right_without_replacement(us: Floats) -> int:
    return first(pair(us), [us[0], us[1], us[2]], kind=WITHOUT)


def right_with_replacement(us: Floats) -> int:
    return first([draw(Q.q, us[3]), draw(Q.q, us[4])], [us[0], us[1], us[2]])


def sorted_by_q(us: Floats) -> int:
    return first(sorted(pair(us), key=lambda x: (-Q.q[x], x)), [us[0], us[1], us[2]], kind=WITHOUT)


def sorted_by_id(us: Floats) -> int:
    return first(sorted(pair(us)), [us[0], us[1], us[2]], kind=WITHOUT)


def q_not_renormalised(us: Floats, toy: Toy = T3) -> int:
    p, q = toy.p(()), toy.draft(()).q.copy()
    for x, u in zip(pair(us, toy.draft(())), (us[1], us[2]), strict=True):
        if u * q[x] < p[x]:
            return x
        p = residual(p, q)
        p /= p.sum()
        q[x] = 0.0
    return draw(p, us[0])


def judged_by_the_with_replacement_loop(us: Floats) -> int:
    return first(pair(us), [us[0], us[1], us[2]], kind=SAMPLED)


def duplicates_merged(us: Floats) -> int:
    xs = list(dict.fromkeys([draw(Q.q, us[3]), draw(Q.q, us[4])]))
    return first(xs, [us[0], us[1], us[2]][: len(xs) + 1])


def siblings_judged_independently(us: Floats) -> int:
    """Each against the target law itself; if none passes, the first residual."""
    q = Q.q
    for x, u in zip(pair(us), (us[1], us[2]), strict=True):
        if u * q[x] < P[x]:
            return x
        q = without(q, x)
    return draw(residual(P, Q.q), us[0])


def siblings_share_u(us: Floats) -> int:
    return first(pair(us), [us[0], us[1], us[1]], kind=WITHOUT)


def siblings_share_the_draft_number(us: Floats) -> int:
    return first(draw_siblings(Q, np.array([us[3], us[3]])), [us[0], us[1], us[2]], kind=WITHOUT)


def best_of_two_drafts_by_q(us: Floats) -> int:
    """Two are drawn, the likelier is kept (the first of equals)."""
    return first([max(pair(us), key=lambda x: Q.q[x])], [us[0], us[1]])


def longer_of_two_raced_trees(us: Floats) -> int:
    """The second tree's result counts if the first accepts nothing."""
    a, b = draw(Q.q, us[3]), draw(Q.q, us[4])
    return a if us[1] * Q.q[a] < P[a] else first([b], [us[0], us[2]])


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
    return outcome_law(process, n, cells=16)


@pytest.mark.parametrize("process", TABLE, ids=lambda p: p.__name__)
def test_a_wrong_rule_yields_its_tabulated_law_and_is_refused(process: Process) -> None:
    got = law(process)
    assert distance(got, dict(enumerate(TABLE[process]))) < 1e-6
    with pytest.raises(AssertionError):
        assert_lawful(got, TARGET)


def test_a_forgotten_tail_never_reaches_the_rule() -> None:
    """The production rule normalises what it is given, so the fault must be caught in the answer; and it is:
    test_acceptance refuses "tail forgotten"."""
    process: Process = lambda us: first([draw(SPARSE_T3.draft(()).q, us[2])], us[:2], SPARSE_T3, tail=0.0)  # noqa: E731
    with pytest.raises(AssertionError):
        assert_lawful(law(process), TARGET)


@pytest.mark.parametrize(
    "process", [right, right_without_replacement, right_with_replacement], ids=lambda p: p.__name__
)
def test_the_same_processes_without_a_fault_pass(process: Process) -> None:
    assert_lawful(law(process), TARGET)


# PAIR-5: the sizes that public bug reports would have had (scenarios.md).

P5, Q5 = PAIR_5.p(()), PAIR_5.draft(())


@dataclass(frozen=True)
class Report:
    """process: the injector; total variation: its bias in closed form."""

    process: Process
    bias: float


def b01_filtered_draws_raw_q(us: Floats) -> int:
    return first([draw(np.array([2.0, 4.0, 0, 0, 0]), us[2])], [us[0], us[1]], PAIR_5)


def b02_argmax_with_softmax(us: Floats) -> int:
    return first([1], [us[0], us[1]], PAIR_5)


def b03_rejection_draws_from_p(us: Floats) -> int:
    x = draw(Q5.q, us[2])
    return x if us[1] * Q5.q[x] < P5[x] else draw(P5, us[0])


def b05_q_0_means_accept(us: Floats) -> int:
    return draw(Q5.q, us[2])


def b06_a_neighbours_q(us: Floats) -> int:
    neighbour = constant("reversed", P5.tolist(), (2, 1, 1, 4, 2))
    return first([draw(Q5.q, us[2])], [us[0], us[1]], neighbour)


def b07_a_target_draw_per_sibling(us: Floats) -> int:
    """Siblings 1 and 0 win if a fresh draw of the target equals them; else one more draw."""
    if draw(P5, us[1]) == 1:
        return 1
    return 0 if draw(P5, us[2]) == 0 else draw(P5, us[0])


def b08_q_not_renormalised(us: Floats) -> int:
    return q_not_renormalised(us, PAIR_5)


def b11_two_rules_or_ed(us: Floats) -> int:
    x = draw(Q5.q, us[2])
    return x if draw(P5, us[3]) == x else first([x], [us[0], us[1]], PAIR_5)


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


@pytest.mark.scenario("B01")
def test_a_filtered_draft_that_reports_its_filtered_law_is_exact() -> None:
    """Variant A of the report."""
    filtered = constant("filtered", P5.tolist(), (2, 4), (0, 1))
    process: Process = lambda us: first([draw(filtered.draft(()).q, us[2])], us[:2], filtered)  # noqa: E731
    z = law(process)
    assert z[0] == pytest.approx(0.5, abs=1e-6)
    assert z[1] == pytest.approx(0.2, abs=1e-6)


@pytest.mark.scenario("B03")
def test_the_residual_of_pair_5_is_0_and_2_only() -> None:
    """norm((p - q)+) = (.857, 0, .143, 0, 0), within what float32 leaves of p."""
    rejected: Law = {}
    for x in range(5):
        for token, mass in outcome_law(lambda us, x=x: first([x], us, PAIR_5), 2, cells=2).items():  # type: ignore[misc]
            if token != x:
                rejected[token] = rejected.get(token, 0.0) + Q5.q[x] * mass
    total = sum(rejected.values())
    assert total == pytest.approx(0.35, abs=1e-6)
    assert rejected[0] / total == pytest.approx(6 / 7, abs=1e-6)
    assert rejected[2] / total == pytest.approx(1 / 7, abs=1e-6)


@pytest.mark.scenario("B09")
def test_q_in_another_precision_than_the_draw_has_its_known_bias() -> None:
    """Drawn 50/50, reported .44/.56: bias .053. On the wire q is float16 and both sides use those bits."""
    two = constant("rounded", (0.5, 0.5), (0.44, 0.56))
    wrong: Process = lambda us: first([draw(np.array([1.0, 1.0]), us[2])], us[:2], two)  # noqa: E731
    honest: Process = lambda us: first([draw(two.draft(()).q, us[2])], us[:2], two)  # noqa: E731
    assert distance(law(wrong, 3), {0: 0.5, 1: 0.5}) == pytest.approx(0.053, abs=1e-3)
    assert_lawful(law(honest, 3), {0: 0.5, 1: 0.5})
    with pytest.raises(AssertionError):
        assert_lawful(law(wrong, 3), {0: 0.5, 1: 0.5})
