from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec.core.acceptance import Acceptance, emitted, follow, token_rule
from specdec.core.draft import NO_DRAFT, Draft, DraftKind
from specdec.core.randomness import Purpose, coupled_choice, target_key, uniforms
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, TargetLaw, Verification, VerifyForm
from tests.core.integration import Floats, outcome_law
from tests.core.toys import CHAIN, PAIR_5, T3, Tokens, Toy, drafts, law_of, pq_reply, random_toy

V = 6
CHOSEN, SAMPLED, WITHOUT = DraftKind.CHOSEN, DraftKind.SAMPLED, DraftKind.SAMPLED_WITHOUT_REPLACEMENT
ZEROS = np.zeros(8)


def y_reply(*ys: int, child_p: list[float] | None = None) -> Verification:
    p = None if child_p is None else np.array(child_p, np.float32)
    return Verification(VerifyForm.Y, np.array(ys, np.uint32), child_p=p)


def chosen(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(DraftTree(np.array(tokens, np.uint32), np.array(parents, np.int64)))


TREE = chosen([4, 2, 1, 3], [0, 0, 1, 2])  # 4 -> 1 and 2 -> 3


# The y-form.


def test_the_walk_follows_the_targets_own_draws_to_a_leaf() -> None:
    got = follow(TREE, y_reply(2, 0, 3, 0, 5), ZEROS)
    assert got == Acceptance((2, 4), 5, True)
    assert emitted(TREE, got).tolist() == [2, 3, 5]
    assert emitted(TREE, got).dtype == np.uint32


def test_the_walk_ends_with_the_first_draw_that_no_child_equals() -> None:
    assert follow(TREE, y_reply(4, 0, 3, 0, 5), ZEROS) == Acceptance((1,), 0, False)


@pytest.mark.scenario("B29")
def test_nothing_accepted_commits_exactly_one_token_that_of_the_root() -> None:
    """Every node carries its own sentinel; only the root's may come out."""
    y = follow(TREE, y_reply(0, 1, 2, 3, 5), ZEROS)
    assert emitted(TREE, y).tolist() == [0]
    law = law_of([1, 1], [4, 2])
    draft = Draft(DraftTree.chain([4, 4]), SAMPLED, (law, law))
    rejecting = TargetLaw(law.ids, np.zeros(2, np.float32), 1.0)
    sentinels = Verification(VerifyForm.PQ, np.array([0, 1, 3], np.uint32), (rejecting, rejecting))
    for u in (0.0, 0.5, 1 - 2.0**-53):
        pq = token_rule(draft, sentinels, np.full(3, u))
        assert (pq.nodes, pq.bonus, emitted(draft, pq).tolist()) == ((), False, [0])


def test_plain_decoding_is_the_empty_tree_under_every_rule() -> None:
    y = follow(NO_DRAFT, y_reply(3), ZEROS)
    pq = token_rule(NO_DRAFT, Verification(VerifyForm.PQ, np.array([3], np.uint32)), ZEROS)
    assert y == pq == Acceptance((), 3, True)


def test_alpha_of_a_chosen_draft_is_the_mass_on_its_distinct_children() -> None:
    child_p = [0.25, 0.5, 0.125, 1.0]
    assert follow(TREE, y_reply(2, 0, 3, 0, 5, child_p=child_p), ZEROS).alphas == (0.75, 1.0)
    assert follow(TREE, y_reply(0, 0, 3, 0, 5, child_p=child_p), ZEROS).alphas == (0.75,)
    twins = chosen([4, 4], [0, 0])
    assert follow(twins, y_reply(4, 1, 2, child_p=[0.25, 0.25]), ZEROS) == Acceptance((1,), 1, True, (0.25,))


def test_the_acceptance_of_a_coupled_draft_is_only_counted() -> None:
    """p(x) of a token that was drawn with the target's own noise is not its chance of acceptance."""
    reply = y_reply(4, 1, child_p=[0.25])
    chain = chosen([4], [0])
    assert follow(chain, reply, ZEROS).alphas == (0.25,)
    assert follow(replace(chain, coupled=True), reply, ZEROS).alphas == ()


def test_seeded_output_is_that_of_plain_decoding_whatever_the_draft() -> None:
    """Drafts that know the noise, that are always wrong, random trees, any k, changing from cycle to
    cycle."""
    toy = random_toy(3, vocab=V, memory=3)
    tokens = np.arange(V, dtype=np.uint32)

    def y(seed: int, context: Tokens) -> int:
        return coupled_choice(tokens, toy.p(context), target_key(seed, len(context)))

    def guess(rng: np.random.Generator, seed: int, context: Tokens) -> Draft:
        tree = DraftTree.chain([])
        for _ in range(rng.integers(0, 6)):
            parent = int(rng.integers(0, tree.num_nodes))
            path = context + tuple(tree.path(parent))
            knows = rng.random() < 0.6
            token = y(seed, path) if knows else int(rng.integers(0, V))
            tree = DraftTree(np.append(tree.token_ids, np.uint32(token)), np.append(tree.parents, parent))
        return Draft(tree)

    rng = np.random.default_rng(1)
    accepted = 0
    for seed in range(60):
        plain: Tokens = ()
        while len(plain) < 14:
            plain += (y(seed, plain),)
        text: Tokens = ()
        while len(text) < 14:
            draft = guess(rng, seed, text)
            ys = [y(seed, text + tuple(draft.tree.path(node))) for node in range(draft.tree.num_nodes)]
            got = follow(draft, y_reply(*ys), ZEROS)
            text += tuple(emitted(draft, got).tolist())
            accepted += len(got.nodes)
        assert text[:14] == plain
    assert accepted > 200


# The p/q form.


def oracle(toy: Toy, draft: Draft, context: Tokens, us: Floats) -> tuple[list[int], int]:
    """The token rule of algorithms.md on laws over the whole vocabulary, entry by entry: accepted nodes and
    the last token, -1 for a draw of the target at a leaf or outside the support."""
    laws = dict(zip(draft.tree.inner_nodes, draft.laws, strict=True))
    accepted: list[int] = []
    node = 0
    while draft.tree.children[node]:
        law = laws[node]
        p = dict(enumerate(toy.p(context + tuple(draft.tree.path(node)))))
        q = dict.fromkeys(p, 0.0) | {int(v): float(w) for v, w in zip(law.ids, law.q, strict=True)}
        for child in draft.tree.children[node]:
            x = draft.tree.token(child)
            if us[child] * q[x] < p[x]:
                break
            rest = {v: max(p[v] - q[v], 0.0) for v in p}
            p = {v: w / sum(rest.values()) for v, w in rest.items()}
            if draft.kind is WITHOUT:
                q[x] = 0.0
                q = {v: w / (sum(q.values()) or 1.0) for v, w in q.items()}
        else:
            running = 0.0
            for v in law.ids.tolist():
                running += p[v]
                if us[0] < running:
                    return accepted, v
            return accepted, -1
        accepted.append(child)
        node = child
    return accepted, -1


@pytest.mark.parametrize("kind", [SAMPLED, WITHOUT])
def test_the_token_rule_equals_the_dense_oracle_at_every_uniform(kind: DraftKind) -> None:
    rng = np.random.default_rng(7)
    for toy in (random_toy(1), random_toy(2, vocab=5, support=2), random_toy(3, vocab=5, support=3, zeros=True)):
        for shape in (CHAIN[2], (0, 0, 1, 1), (0, 0, 0)):
            for draft, _ in drafts(toy, kind, shape, ()):
                verification, _ = pq_reply(toy, draft, ())
                for us in rng.random((12, draft.tree.num_nodes)):
                    got = token_rule(draft, verification, us)
                    last = got.token if got.token < 1000 else -1
                    assert (list(got.nodes), last) == oracle(toy, draft, (), us)
                    at_leaf = not draft.tree.children[got.nodes[-1] if got.nodes else 0]
                    assert got.bonus == at_leaf


def test_acceptance_is_strict_and_multiplied() -> None:
    """u = 0 never accepts a token that the target forbids; u * q = p does not accept."""
    law = law_of([1, 1], [0, 1])
    draft = Draft(DraftTree.chain([0]), SAMPLED, (law,))

    def accepted(p: list[float], u: float) -> bool:
        target = TargetLaw(law.ids, np.array(p, np.float32), 1 - sum(p))
        reply = Verification(VerifyForm.PQ, np.array([5, 5], np.uint32), (target,))
        return bool(token_rule(draft, reply, np.array([0.5, u])).nodes)

    assert not accepted([0.0, 0.5], 0.0)
    assert not accepted([0.25, 0.5], 0.5)
    assert accepted([0.25, 0.5], np.nextafter(0.5, 0))


def test_residual_never_emits_a_token_with_more_draft_than_target_mass() -> None:
    for toy in (T3, PAIR_5, random_toy(5, vocab=5)):
        law, p = toy.draft(()), toy.p(())
        more = law.ids[law.q > p[law.ids] + 1e-6].tolist()
        assert more
        for draft, _ in drafts(toy, SAMPLED, CHAIN[1], ()):
            verification, _ = pq_reply(toy, draft, ())
            for us in np.random.default_rng(0).random((300, 2)):
                got = token_rule(draft, verification, us)
                assert got.nodes or got.token not in more


def test_the_outside_sample_is_never_emitted_where_nothing_lies_outside() -> None:
    """Even where the residual's uniform runs off the end."""
    toy = random_toy(4, vocab=5, support=3, tail=False, zeros=True)
    for draft, _ in drafts(toy, SAMPLED, CHAIN[1], ()):
        verification, _ = pq_reply(toy, draft, ())
        assert verification.drawn[0] == NO_OUTSIDE
        for last in (0.0, 0.5, 1 - 2.0**-53, 1.0):
            got = token_rule(draft, verification, np.array([last, 1 - 2.0**-53]))
            assert got.nodes or toy.p(())[got.token] > 0


def test_the_target_law_is_kept_where_rounding_leaves_no_residual() -> None:
    """p = q rejects only by rounding; then the draw is from p."""
    law = law_of([1, 3], [0, 1])
    draft = Draft(DraftTree.chain([1]), SAMPLED, (law,))
    target = TargetLaw(law.ids, np.array([0.25, 0.75], np.float32), 0.0)
    reply = Verification(VerifyForm.PQ, np.array([NO_OUTSIDE, 2], np.uint32), (target,))
    assert token_rule(draft, reply, np.array([0.9, 0.5])).nodes == (1,)
    assert token_rule(draft, reply, np.array([0.9, 1.0])) == Acceptance((), 1, False, (1.0,))


@pytest.mark.scenario("B11")
def test_alpha_is_the_exact_chance_that_a_sampled_draft_is_accepted() -> None:
    """On PAIR-5 .650, the sum of min(p, q); a higher rate would be as wrong as a lower one."""
    for toy, known in ((PAIR_5, 0.65), (T3, 0.6), (random_toy(9, vocab=5, support=2), None)):
        rate = 0.0
        for draft, mass in drafts(toy, SAMPLED, CHAIN[1], ()):
            verification, _ = pq_reply(toy, draft, ())
            (alpha,) = token_rule(draft, verification, np.zeros(2)).alphas
            law = outcome_law(lambda us, d=draft, v=verification: token_rule(d, v, us).nodes, 2)  # type: ignore[misc]
            rate += mass * law.get((1,), 0.0)
        assert rate == pytest.approx(alpha, abs=1e-9)
        assert known is None or rate == pytest.approx(known, abs=1e-6)


def test_a_chain_reports_one_alpha_per_judged_position() -> None:
    toy = random_toy(2)
    for draft, _ in drafts(toy, SAMPLED, CHAIN[3], ()):
        verification, _ = pq_reply(toy, draft, ())
        got = token_rule(draft, verification, uniforms(1, 2, Purpose.ACCEPT, 4))
        assert len(got.alphas) == min(len(got.nodes) + 1, 3)


def test_a_drafter_equal_to_the_target_has_alpha_1() -> None:
    law = law_of([4, 2, 1, 1])
    toy = Toy("oracle", lambda context: law.q.astype(np.float32), lambda context: law)
    for draft, _ in drafts(toy, SAMPLED, CHAIN[2], ()):
        verification, _ = pq_reply(toy, draft, ())
        got = token_rule(draft, verification, np.full(3, 1 - 2.0**-53))
        assert got.nodes == (1, 2)
        assert got.alphas == pytest.approx((1.0, 1.0), abs=1e-9)


def test_rules_refuse_what_they_cannot_judge() -> None:
    pq = Verification(VerifyForm.PQ, np.array([1], np.uint32))
    with pytest.raises(AssertionError, match="y-form"):
        follow(NO_DRAFT, pq, ZEROS)
    with pytest.raises(AssertionError, match="laws"):
        token_rule(NO_DRAFT, y_reply(1), ZEROS)
    with pytest.raises(AssertionError, match="y-form"):
        token_rule(TREE, pq, ZEROS)
