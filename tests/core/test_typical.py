from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specdec.core.acceptance import Acceptance, Floats, Rule, emitted
from specdec.core.draft import NO_DRAFT, Draft
from specdec.core.tree import DraftTree
from specdec.core.typical import threshold, typical_rule
from specdec.core.verification import Verification, VerifyForm
from tests.core.integration import Law, assert_lawful, distance
from tests.core.toys import T3, Toy, constant, sequence_law

UNUSED: Floats = np.zeros(0)
Y0, Y1, Y2 = 100, 101, 102  # draws that show where they come from


def entropy(p: Floats) -> float:
    return float(-sum(x * np.log(x) for x in p if x > 0))


def draft_of(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(DraftTree(np.array(tokens, np.uint32), np.array(parents, np.int64)))


def reply(draft: Draft, child_p: list[float], entropies: list[float] | None = None) -> Verification:
    nodes = draft.tree.num_nodes
    return Verification(
        VerifyForm.TYPICAL,
        np.arange(100, 100 + nodes, dtype=np.uint32),
        child_p=np.array(child_p, np.float32),
        entropies=np.array([0.0] * nodes if entropies is None else entropies, np.float32),
    )


def test_the_threshold_of_t3_and_of_a_uniform_law() -> None:
    """Section 14: H = 1.029653, threshold .09; uniform over 100: .003."""
    h = entropy(np.array([0.5, 0.3, 0.2]))
    assert h == pytest.approx(1.029653, abs=1e-6)
    got = threshold(np.array([h, np.log(100), 0.0], np.float32))
    assert got == pytest.approx([0.09, 0.003, 0.09], abs=1e-9)


def test_a_token_must_exceed_the_threshold_of_its_parents_law() -> None:
    chain = draft_of([1, 2], [0, 1])
    flat = float(np.log(100))
    assert typical_rule(chain, reply(chain, [0.0901, 0.0901]), UNUSED).nodes == (1, 2)
    assert typical_rule(chain, reply(chain, [0.5, 0.0899]), UNUSED).nodes == (1,)
    assert typical_rule(chain, reply(chain, [0.5, 0.0031], [0, flat, 0]), UNUSED).nodes == (1, 2)
    assert typical_rule(chain, reply(chain, [0.5, 0.0029], [0, flat, 0]), UNUSED).nodes == (1,)
    assert typical_rule(chain, reply(chain, [0.5, 0.0031], [flat, 0, flat]), UNUSED).nodes == (1,)
    at_it = threshold(np.array([flat], np.float32))[0]
    edge = reply(chain, [float(np.nextafter(np.float32(at_it), np.float32(0))), 1.0], [flat, 0, 0])
    assert typical_rule(chain, edge, UNUSED).nodes == ()


def test_the_longest_path_wins_then_the_likeliest_then_the_first() -> None:
    tree = draft_of([1, 2, 3, 4, 5], [0, 0, 1, 2, 3])  # 1 -> 3 -> 5 and 2 -> 4
    assert typical_rule(tree, reply(tree, [0.2, 0.7, 0.2, 0.9, 0.2]), UNUSED).nodes == (1, 3, 5)
    assert typical_rule(tree, reply(tree, [0.2, 0.7, 0.2, 0.9, 0.01]), UNUSED).nodes == (2, 4)
    assert typical_rule(tree, reply(tree, [0.9, 0.2, 0.5, 0.9, 0.01]), UNUSED).nodes == (1, 3)
    assert typical_rule(tree, reply(tree, [0.3, 0.3, 0.3, 0.3, 0.01]), UNUSED).nodes == (1, 3)


def test_no_token_is_kept_unchecked() -> None:
    """A typical token behind one that is not is no use; nor is the first token exempt, as in some versions."""
    chain = draft_of([1, 2, 3], [0, 1, 2])
    assert typical_rule(chain, reply(chain, [0.01, 0.9, 0.9]), UNUSED) == Acceptance((), Y0, False)
    assert typical_rule(chain, reply(chain, [0.9, 0.01, 0.9]), UNUSED) == Acceptance((1,), Y1, False)
    assert typical_rule(chain, reply(chain, [0.0, 0.9, 0.9]), UNUSED).nodes == ()


def test_behind_the_path_comes_the_targets_own_draw() -> None:
    chain = draft_of([1, 2], [0, 1])
    got = typical_rule(chain, reply(chain, [0.9, 0.9]), UNUSED)
    assert got == Acceptance((1, 2), Y2, True)
    assert emitted(chain, got).tolist() == [1, 2, Y2]
    assert typical_rule(NO_DRAFT, reply(NO_DRAFT, []), UNUSED) == Acceptance((), Y0, True)


def test_acceptance_is_only_counted() -> None:
    chain = draft_of([1], [0])
    got = typical_rule(chain, reply(chain, [0.9]), UNUSED)
    assert got.alphas == got.exact_chances == ()


def test_at_temperature_0_it_is_greedy() -> None:
    """Point masses: p is 0 or 1 and H is 0. Random trees against the walk along the argmax."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        n = int(rng.integers(1, 9))
        tree = DraftTree(rng.integers(0, 3, n).astype(np.uint32), np.array([rng.integers(0, i + 1) for i in range(n)]))
        argmax = rng.integers(0, 3, n + 1).astype(np.uint32)
        child_p = [float(argmax[parent] == token) for parent, token in zip(tree.parents, tree.token_ids, strict=True)]
        answer = Verification(
            VerifyForm.TYPICAL, argmax, child_p=np.array(child_p, np.float32), entropies=np.zeros(n + 1, np.float32)
        )
        text = emitted(Draft(tree), typical_rule(Draft(tree), answer, UNUSED)).tolist()
        paths = [tree.path(node) for node in range(n + 1) if all_argmax(tree, argmax, node)]
        assert text[:-1] == max(paths, key=len)  # twins may lead to different depths


def all_argmax(tree: DraftTree, argmax: np.ndarray, node: int) -> bool:
    return all(argmax[tree.parents[on - 1]] == tree.token(on) for on in tree.nodes_to(node))


def emissions(rule: Rule, toy: Toy, token: int) -> Law:
    """Law of one cycle that always drafts `token`, then the target alone: two tokens."""
    draft, p = draft_of([token], [0]), toy.p(())
    law: Law = {}
    for y0, m0 in enumerate(p):
        for y1, m1 in enumerate(toy.p((token,))):
            answer = replace(reply(draft, [p[token]], [entropy(p), 0]), drawn=np.array([y0, y1], np.uint32))
            head = tuple(emitted(draft, rule(draft, answer, UNUSED)).tolist())
            for rest, m in sequence_law(toy, head, 2 - len(head)).items():
                law[head + rest] = law.get(head + rest, 0.0) + m0 * m1 * m
    return law


def typical_law(toy: Toy, token: int) -> Law:
    """The same as section 7 has it: a typical token stands, then the target's own law; else the target's law."""
    p = toy.p(())
    if p[token] > min(0.09, 0.3 * np.exp(-entropy(p))):
        return {(token, v): float(m) for v, m in enumerate(toy.p((token,)))}
    return sequence_law(toy, (), 2)


def test_it_is_lossy_and_the_law_test_says_so() -> None:
    """T3, token 2 always: .2 is typical, so the first token is always 2, not in one case of five."""
    got, target = emissions(typical_rule, T3, 2), sequence_law(T3, (), 2)
    assert distance(got, target) == pytest.approx(0.8, abs=1e-6)
    with pytest.raises(AssertionError):
        assert_lawful(got, target)


# Wrong versions, each refused by the check that the rule passes.


def judged_by(limit: Callable[[float], float]) -> Rule:
    def rule(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
        assert verification.child_p is not None and verification.entropies is not None
        keeps = verification.child_p[0] > limit(float(verification.entropies[0]))
        return Acceptance((1,) if keeps else (), int(verification.drawn[int(keeps)]), bool(keeps))

    return rule


def not_what_was_refused(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """A residual behind a refused token: where the target's draw is that token, another is taken."""
    got, refused = typical_rule(draft, verification, us), draft.tree.token(1)
    return got if got.nodes or got.token != refused else replace(got, token=(refused + 1) % 5)


RIGHT: dict[str, Rule] = {
    "the rule": typical_rule,
    "as judged by its formula": judged_by(lambda h: min(0.09, 0.3 * np.exp(-h))),
}
WRONG: dict[str, Rule] = {
    "epsilon alone": judged_by(lambda h: 0.09),
    "delta alone": judged_by(lambda h: 0.3 * np.exp(-h)),
    "the larger of the two": judged_by(lambda h: max(0.09, 0.3 * np.exp(-h))),
    "entropy with the wrong sign": judged_by(lambda h: min(0.09, 0.3 * np.exp(h))),
    "entropy in bits": judged_by(lambda h: min(0.09, 0.3 * np.exp(-h / np.log(2)))),
    "the first token kept unchecked": judged_by(lambda h: -1.0),
    "a residual behind the path": not_what_was_refused,
}
SHARP = constant("sharp", (0.8, 0.1, 0.06, 0.03, 0.01), (1,), (0,))  # H = .729: .145, so .09
FLAT = constant("flat", (0.3, 0.24, 0.33, 0.08, 0.05), (1,), (0,))  # H = 1.421: .0724


def passes(rule: Rule) -> bool:
    """Over every draft token of both laws."""
    try:
        for toy in (SHARP, FLAT):
            for token in range(5):
                assert_lawful(emissions(rule, toy, token), typical_law(toy, token))
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_wrong_versions_are_refused(name: str) -> None:
    assert passes((RIGHT | WRONG)[name]) == (name in RIGHT)


def test_it_judges_nothing_but_its_own_form() -> None:
    with pytest.raises(AssertionError, match="entropy"):
        typical_rule(NO_DRAFT, Verification(VerifyForm.Y, np.array([1], np.uint32)), UNUSED)
    with pytest.raises(AssertionError, match="check_verification"):
        typical_rule(NO_DRAFT, Verification(VerifyForm.TYPICAL, np.array([1], np.uint32)), UNUSED)
