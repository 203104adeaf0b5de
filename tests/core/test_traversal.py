"""Traversal verification: what it shares with block verification, where it stands against the walk, and the rules that
look like it and are wrong (the law itself: test_output_law, test_real_keys)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec.core.acceptance import Acceptance, Rule, token_rule
from specdec.core.block import block_rule
from specdec.core.draft import NO_DRAFT, Draft, DraftKind
from specdec.core.laws import draw
from specdec.core.traversal import traversal_rule
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, TargetLaw, Verification, VerifyForm
from tests.core.cycles import Cycling
from tests.core.integration import Floats, assert_lawful, distance, outcome_law
from tests.core.test_block import random_chain
from tests.core.toys import C2, PAIR_5, T3, Tokens, Toy, drafts, law_of, pq_reply, random_toy, sequence_law

SAMPLED, WITHOUT = DraftKind.SAMPLED, DraftKind.SAMPLED_WITHOUT_REPLACEMENT
ALMOST_1 = 1 - 2.0**-53


def test_on_chains_it_is_block_verification_number_by_number() -> None:
    rng = np.random.default_rng(6)
    lengths = set()
    for _ in range(2000):
        draft, verification = random_chain(rng)
        us = rng.random(draft.tree.num_nodes)
        got, want = traversal_rule(draft, verification, us), block_rule(draft, verification, us)
        assert (got.nodes, got.token, got.bonus) == (want.nodes, want.token, want.bonus)
        assert got.alphas == pytest.approx(want.alphas)
        lengths.add((len(got.nodes), got.bonus))
    assert len(lengths) > 8


def oracle(toy: Toy, draft: Draft, us: Floats) -> tuple[list[int], int]:
    """Section 3 word by word on laws over the whole vocabulary: (accepted nodes, last token), -1 for a draw of the
    target at a leaf or outside the support."""
    tree = draft.tree
    base = dict(zip(tree.inner_nodes, draft.laws, strict=True))
    vocab = len(toy.p(()))
    a = {0: 1.0}
    p = {node: toy.p(tuple(tree.path(node))) for node in range(tree.num_nodes)}
    q = {node: np.zeros(vocab) for node in base}
    for node, law in base.items():
        q[node][law.ids] = law.q
    left = {node: list(children) for node, children in enumerate(tree.children)}
    parent = {child: node for node, children in enumerate(tree.children) for child in children}
    while True:
        node = 0
        while left[node]:
            child = left[node][0]
            x = tree.token(child)
            a.setdefault(child, min(1.0, a[node] * p[node][x] / q[node][x]))
            node = child
        if node == 0 or us[node] < a[node]:
            break
        m, x = parent[node], tree.token(node)
        rest = np.maximum(a[m] * p[m] - q[m], 0.0)
        z = rest.sum()
        if z > 0:
            a[m], p[m] = z / (z + 1 - a[m]), rest / z
        elif a[m] < 1:
            a[m] = 0.0
        left[m].remove(node)
        if draft.kind is WITHOUT:
            q[m][x] = 0.0
            q[m] /= q[m].sum() or 1.0
    nodes = list(tree.nodes_to(node))
    running = 0.0
    for v in base[node].ids.tolist() if node in base else ():
        running += p[node][v]
        if us[0] < running:
            return nodes, v
    return nodes, -1


@pytest.mark.parametrize("kind", [SAMPLED, WITHOUT])
def test_it_equals_the_dense_oracle_at_every_uniform(kind: DraftKind) -> None:
    rng = np.random.default_rng(7)
    for toy in (random_toy(1), random_toy(2, vocab=5, support=2), random_toy(3, vocab=5, support=3)):
        for shape in ((0, 1, 2), (0, 0, 1, 1), (0, 0, 0), (0, 1, 1, 0)):
            for draft, _ in drafts(toy, kind, shape, ()):
                verification, _ = pq_reply(toy, draft, ())
                for us in rng.random((8, draft.tree.num_nodes)):
                    got = traversal_rule(draft, verification, us)
                    last = got.token if got.token < 1000 else -1
                    assert (list(got.nodes), last) == oracle(toy, draft, us)
                    at_leaf = not draft.tree.children[got.nodes[-1] if got.nodes else 0]
                    assert got.bonus == at_leaf


def test_it_is_longer_than_the_walk_on_most_trees_but_not_on_all() -> None:
    """The earliest child with the largest subtree; then C2 with the shape that section 14 names."""

    def lengths(toy: Toy, shape: Tokens) -> list[float]:
        rules = (token_rule, traversal_rule)
        return [Cycling(rule, VerifyForm.PQ, WITHOUT, shape).expected_accepted(toy) for rule in rules]

    gains = [np.diff(lengths(random_toy(400 + i), (0, 1, 0))).item() for i in range(12)]
    assert np.mean(gains) > 0.01
    assert sum(gain > -1e-9 for gain in gains) >= 9
    walk, traversal = lengths(C2, (0, 1, 1, 3))
    assert traversal < walk - 0.05


def test_alphas_are_those_of_the_accepted_path_and_one_more() -> None:
    """As under the walk: of every accepted node that has children, first child's law. Chances are only counted."""
    toy, shape = random_toy(5), (0, 0, 1, 1, 2)
    for draft, _ in drafts(toy, WITHOUT, shape, ()):
        verification, _ = pq_reply(toy, draft, ())
        for us in np.random.default_rng(1).random((4, draft.tree.num_nodes)):
            got = traversal_rule(draft, verification, us)
            inner = [node for node in (0, *got.nodes) if draft.tree.children[node]]
            assert len(got.alphas) == len(inner)
            for node, alpha in zip(inner, got.alphas, strict=True):
                path = tuple(draft.tree.path(node))
                law = toy.draft(path)
                assert alpha == pytest.approx(np.minimum(toy.p(path)[law.ids], law.q).sum(), abs=1e-6)
            assert got.exact_chances == ()


@pytest.mark.parametrize("kind", [SAMPLED, WITHOUT])
def test_the_mean_alpha_is_unbiased(kind: DraftKind) -> None:
    """Whether a node is on the accepted path depends on nothing below it: with other laws behind the first token, the
    first token is accepted equally often."""
    toy = random_toy(21)
    other = replace(toy, target=lambda context: toy.target(context if not context else (*context, 7)))
    reached = []
    for world in (toy, other):
        law: dict[int, float] = {}
        for draft, mass in drafts(world, kind, (0, 0, 1, 2), ()):
            verification, _ = pq_reply(world, draft, ())
            outcomes = outcome_law(
                lambda us, d=draft, v=verification: traversal_rule(d, v, us).nodes[:1],  # type: ignore[misc]
                draft.tree.num_nodes,
            )
            for nodes, share in outcomes.items():
                token = draft.tree.token(nodes[0]) if nodes else -1
                law[token] = law.get(token, 0.0) + mass * share
        reached.append(law)
    assert_lawful(reached[0], reached[1], 1e-6)


# The edges.


def test_plain_decoding_is_the_empty_tree() -> None:
    got = traversal_rule(NO_DRAFT, Verification(VerifyForm.PQ, np.array([3], np.uint32)), np.zeros(1))
    assert (got.nodes, got.token, got.bonus) == ((), 3, True)


def test_siblings_that_use_up_q() -> None:
    """As many children as q has tokens: q is exhausted and not renormalised; what is left is the target's."""
    for toy in (random_toy(4, vocab=4, support=2), random_toy(4, vocab=4, support=3, zeros=True), T3):
        cycling = Cycling(traversal_rule, VerifyForm.PQ, WITHOUT, (0, 0, 0, 1))
        assert_lawful(cycling.one_cycle(toy, (), 3), sequence_law(toy, (), 3))


def test_where_nothing_is_left_the_draw_is_from_what_was_there() -> None:
    """p = q: only rounding refuses, and the weight stays 1; with a weight below 1 the node falls too."""
    law = law_of([1, 3], [0, 1])
    equal = TargetLaw(law.ids, np.array([0.25, 0.75], np.float32), 0.0)
    draft = Draft(DraftTree(np.array([1, 0], np.uint32), np.array([0, 0])), WITHOUT, (law,))
    reply = Verification(VerifyForm.PQ, np.array([NO_OUTSIDE, 2, 3], np.uint32), (equal,))
    assert traversal_rule(draft, reply, np.array([0.9, 1.0, 1.0])).nodes == ()
    assert traversal_rule(draft, reply, np.array([0.2, 1.0, 1.0])).token in (0, 1)


def test_a_token_that_the_target_forbids_is_never_accepted() -> None:
    law = law_of([1, 1], [0, 1])
    forbids = TargetLaw(law.ids, np.array([0, 0.5], np.float32), 0.5)
    shape = np.array([0, 1])
    draft = Draft(DraftTree(np.array([0, 1], np.uint32), shape), WITHOUT, (law, law))
    reply = Verification(VerifyForm.PQ, np.array([5, 6, 7], np.uint32), (forbids, forbids))
    assert traversal_rule(draft, reply, np.zeros(3)) == Acceptance((), 5, False, (0.5,), ())


# Wrong rules.


def siblings_share_u(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    return traversal_rule(draft, verification, np.array([us[0], *([us[1]] * (len(us) - 1))]))


def siblings_judged_independently(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """Each child against the parent's untouched law; if none passes, its first residual."""
    (law,), (target,) = draft.laws, verification.laws
    q = law.q.copy()
    for child in draft.tree.children[0]:
        x = int(np.flatnonzero(law.ids == draft.tree.token(child))[0])
        if us[child] * q[x] < target.p[x]:
            return Acceptance((child,), int(verification.drawn[child]), True)
        q[x] = 0.0
        q /= q.sum() or 1.0
    return Acceptance((), int(law.ids[draw(np.maximum(target.p - law.q, 0.0), us[0])]), False)


def longest_accepted_path_kept(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """Every node by u q < p on its own; of the paths accepted throughout the longest is kept."""
    tree = draft.tree
    laws = dict(zip(tree.inner_nodes, zip(draft.laws, verification.laws, strict=True), strict=True))
    standing = {0: 0}
    for node in range(1, tree.num_nodes):
        parent = int(tree.parents[node - 1])
        law, target = laws[parent]
        x = int(np.flatnonzero(law.ids == tree.token(node))[0])
        if us[node] * law.q[x] < target.p[x] and parent in standing:
            standing[node] = standing[parent] + 1
    best = max(standing, key=lambda node: standing[node])
    if not best:
        return token_rule(draft, verification, np.array([us[0], *([1.0] * (len(us) - 1))]))
    rest = np.maximum(laws[best][1].p - laws[best][0].q, 0.0) if best in laws else None
    if rest is None or not rest.any():
        return Acceptance(tree.nodes_to(best), int(verification.drawn[best]), True)
    return Acceptance(tree.nodes_to(best), int(laws[best][0].ids[draw(rest, us[0])]), False)


def residual_of_the_wrong_q(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """After a refusal q is not renormalised: judged as if siblings had been drawn with replacement."""
    return traversal_rule(replace(draft, kind=SAMPLED), verification, us)


def leaves_weighed_by_the_walk(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """A leaf that is tested and refused takes its parent with it: no second chance for the prefix."""
    got = traversal_rule(draft, verification, us)
    return got if got.bonus else token_rule(draft, verification, us)


WRONG: dict[Rule, Tokens] = {
    siblings_share_u: (0, 0),
    siblings_judged_independently: (0, 0),
    longest_accepted_path_kept: (0, 0, 1, 2),
    residual_of_the_wrong_q: (0, 0),
    leaves_weighed_by_the_walk: (0, 0, 1, 2),
}


@pytest.mark.scenario("B07", "B08")
@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.__name__)
def test_the_law_test_refuses_wrong_rules(rule: Rule) -> None:
    """Siblings judged independently or by one number, by the first q, the longest path kept, prefixes judged twice."""
    toy, shape = random_toy(8), WRONG[rule]
    wrong, right = (Cycling(r, VerifyForm.PQ, WITHOUT, shape) for r in (rule, traversal_rule))
    target = sequence_law(toy, (), 2)
    assert_lawful(right.one_cycle(toy, (), 2), target)
    got = wrong.one_cycle(toy, (), 2)
    assert distance(got, target) > 1e-3
    with pytest.raises(AssertionError):
        assert_lawful(got, target)


@pytest.mark.scenario("B08")
def test_siblings_without_replacement_need_the_conditional_q() -> None:
    """PAIR-5, two siblings: with the first q for both, the output is bent (B08); with replacement the same loop is
    right."""
    for rule in (token_rule, traversal_rule):
        for kind in (SAMPLED, WITHOUT):
            got = Cycling(rule, VerifyForm.PQ, kind, (0, 0)).one_cycle(PAIR_5, (), 1)
            assert_lawful(got, sequence_law(PAIR_5, (), 1))
    bent = Cycling(residual_of_the_wrong_q, VerifyForm.PQ, WITHOUT, (0, 0)).one_cycle(PAIR_5, (), 1)
    assert distance(bent, sequence_law(PAIR_5, (), 1)) > 0.01
