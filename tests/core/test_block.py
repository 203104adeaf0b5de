"""Block verification: its length, its chances, its alphas; what it does at the edges; and the rules that look like it
and are wrong (the law itself: test_output_law, test_real_keys)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from specdec.core.acceptance import Acceptance, Rule, normalised, token_rule
from specdec.core.block import block_rule, block_weights, child_weight, kept_chance
from specdec.core.draft import NO_DRAFT, Draft, DraftKind, DraftLaw
from specdec.core.expected import chain_survival
from specdec.core.laws import draw
from specdec.core.randomness import Purpose, uniforms
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, TargetLaw, Verification, VerifyForm
from tests.core.cycles import Cycling
from tests.core.integration import Floats, assert_lawful, distance, outcome_law
from tests.core.toys import (
    B2,
    CHAIN,
    T3,
    T4,
    Toy,
    drafts,
    law_of,
    pq_reply,
    random_toy,
    sequence_law,
    target_law,
)

SAMPLED = DraftKind.SAMPLED
ALMOST_1 = 1 - 2.0**-53


def chain_of(toy: Toy, *tokens: int) -> tuple[Draft, Verification]:
    tree = DraftTree.chain(list(tokens))
    laws = tuple(toy.draft(tuple(tree.path(node))) for node in tree.inner_nodes)
    draft = Draft(tree, SAMPLED, laws)
    return draft, pq_reply(toy, draft, ())[0]


def chances(draft: Draft, verification: Verification) -> list[float]:
    """(h_1, ..., h_k) read off the rule itself: the u of one position at which it begins to be kept, the others 1."""
    k = draft.tree.num_draft_tokens
    out = []
    for i in range(1, k + 1):

        def kept(us: Floats, i: int = i) -> bool:
            numbers = np.ones(k + 1)
            numbers[0], numbers[i] = 0.5, us[0]
            return len(block_rule(draft, verification, numbers).nodes) == i

        out.append(outcome_law(kept, 1).get(True, 0.0))
    return out


H_OF_B2 = {(0, 0): (0, 1 / 4), (0, 1): (0, 1), (1, 0): (1, 1 / 2), (1, 1): (1, 1)}


@pytest.mark.parametrize(("tokens", "h"), H_OF_B2.items(), ids=str)
def test_the_chances_of_b2(tokens: tuple[int, int], h: tuple[float, float]) -> None:
    assert chances(*chain_of(B2, *tokens)) == pytest.approx(h, abs=1e-6)


def random_chain(rng: np.random.Generator) -> tuple[Draft, Verification]:
    """Laws of a random sharpness on a random support, tokens drawn from q; p = q, p = 0 and q nearly 1 occur."""
    vocab, k = int(rng.integers(2, 6)), int(rng.integers(1, 7))
    tokens, laws, targets = [], [], []
    for _ in range(k):
        support = rng.permutation(vocab)[: rng.integers(1, vocab + 1)].astype(np.uint32)
        p = rng.dirichlet(np.full(vocab, rng.choice([0.1, 0.5, 3.0]))).astype(np.float32)
        q = p[support] if rng.random() < 0.2 else rng.dirichlet(np.full(len(support), rng.choice([0.1, 1.0])))
        law = DraftLaw(support, (q / q.max()).astype(np.float16))
        if rng.random() < 0.3:
            p[rng.integers(vocab)] = 0
        if not p.any():
            p[0] = 1
        tokens.append(int(support[draw(law.q, rng.random())]))
        laws.append(law)
        targets.append(target_law(p / p.sum(), law)[0])
    drawn = np.full(k + 1, 1000, np.uint32)
    return Draft(DraftTree.chain(tokens), SAMPLED, tuple(laws)), Verification(VerifyForm.PQ, drawn, tuple(targets))


def enumerated(rng: np.random.Generator) -> Toy:
    return random_toy(
        int(rng.integers(1 << 30)),
        vocab=int(rng.integers(2, 4)),
        support=None,
        memory=int(rng.integers(0, 3)),
    )


def expected_lengths(toy: Toy, k: int) -> tuple[float, float]:
    """Over all chains of k: the token rule's from the products of section 1, block's from sum E[pi_i] of section 4."""
    token = block = 0.0
    for draft, mass in drafts(toy, SAMPLED, CHAIN[k], ()):
        verification, _ = pq_reply(toy, draft, ())
        ratios = [
            float(target.p[np.flatnonzero(target.ids == x)[0]] / law.q[np.flatnonzero(law.ids == x)[0]])
            for x, law, target in zip(draft.tree.token_ids, draft.laws, verification.laws, strict=True)
        ]
        reached, pi = 1.0, 1.0
        for ratio in ratios:
            reached *= min(1.0, ratio)
            pi = min(1.0, pi * ratio)
            token += mass * reached
            block += mass * pi
    return token, block


def test_block_is_never_shorter_in_expectation_and_usually_longer() -> None:
    """2,000 random worlds, every chain of each enumerated."""
    rng = np.random.default_rng(4)
    longer = 0
    for _ in range(2000):
        token, block = expected_lengths(enumerated(rng), int(rng.integers(1, 4)))
        assert block >= token - 1e-9
        longer += block > token + 1e-6
    assert longer > 600


@pytest.mark.parametrize("seed", range(6))
def test_the_lengths_of_section_4_are_those_of_the_rules_themselves(seed: int) -> None:
    toy = random_toy(300 + seed, vocab=3, support=2 + seed % 2)
    token, block = expected_lengths(toy, 2)
    for rule, expected in ((token_rule, token), (block_rule, block)):
        got = Cycling(rule, VerifyForm.PQ, SAMPLED, CHAIN[2]).expected_accepted(toy)
        assert got == pytest.approx(expected, abs=1e-6)


def test_block_is_never_shorter_on_any_recorded_chain() -> None:
    rng = np.random.default_rng(3)
    for _ in range(2000):
        survival = chain_survival(*random_chain(rng))
        assert (survival.block >= survival.token - 1e-12).all()


def test_a_prefix_is_kept_with_its_weight_whatever_stands_behind_it() -> None:
    """P(at least i accepted | x_1..x_i) = pi_i, over all that may follow: what makes the alphas unbiased, and what lets
    a draft end anywhere."""
    toy = random_toy(11, vocab=3)
    for first in range(3):
        kept, mass = 0.0, 0.0
        for draft, m in drafts(toy, SAMPLED, CHAIN[3], ()):
            if draft.tree.token(1) != first:
                continue
            verification, _ = pq_reply(toy, draft, ())
            law = outcome_law(lambda us, d=draft, v=verification: len(block_rule(d, v, us).nodes), 4)  # type: ignore[misc]
            kept += m * sum(share for length, share in law.items() if length >= 1)
            mass += m
        p, q = toy.p(()), toy.draft(())
        place = int(np.flatnonzero(q.ids == first)[0])
        assert kept / mass == pytest.approx(min(1.0, p[first] / q.q[place]), abs=1e-6)


def test_alphas_are_unbiased_and_chances_are_exact() -> None:
    """By position, over all drafts and numbers. The mean alpha where position i was judged equals that over prefixes
    kept with their weight; what went on from there is the sum of the chances."""
    toy, k = random_toy(12, vocab=3), 3
    recorded, wanted = np.zeros(k), np.zeros(k)
    went_on, promised = np.zeros(k), np.zeros(k)
    for draft, mass in drafts(toy, SAMPLED, CHAIN[k], ()):
        verification, _ = pq_reply(toy, draft, ())

        def judged(us: Floats, d: Draft = draft, v: Verification = verification) -> tuple[object, ...]:
            got = block_rule(d, v, us)
            assert len(got.alphas) == len(got.exact_chances) == min(len(got.nodes) + 1, k)
            assert all(chance >= alpha - 1e-12 for alpha, chance in zip(got.alphas, got.exact_chances, strict=True))
            return len(got.nodes), got.alphas, got.exact_chances

        for (length, alphas, exact), share in outcome_law(judged, k + 1).items():
            recorded[: len(alphas)] += mass * share * np.array(alphas)
            promised[: len(exact)] += mass * share * np.array(exact)
            went_on[:length] += mass * share
        laws = [normalised(target) for target in verification.laws]
        weights = np.exp(block_weights(draft, laws)[:k])
        overlaps = [np.minimum(p, law.q).sum() for (p, _), law in zip(laws, draft.laws, strict=True)]
        wanted += mass * weights * overlaps
    assert recorded == pytest.approx(wanted, abs=1e-6)
    assert went_on == pytest.approx(promised, abs=1e-6)


# The edges.


def test_plain_decoding_is_the_empty_chain() -> None:
    got = block_rule(NO_DRAFT, Verification(VerifyForm.PQ, np.array([3], np.uint32)), np.zeros(1))
    assert got == Acceptance((), 3, True, (), ())


def test_a_drafter_equal_to_the_target_is_accepted_whole() -> None:
    law = law_of([4, 2, 1, 1])
    toy = Toy("oracle", lambda context: law.q.astype(np.float32), lambda context: law)
    for tokens in ((0, 1, 3), (3, 3, 3)):
        got = block_rule(*chain_of(toy, *tokens), np.full(4, ALMOST_1))
        assert got.nodes == (1, 2, 3) and got.bonus
        assert got.exact_chances == pytest.approx((1, 1, 1))


def test_where_p_equals_q_behind_a_prefix_kept_for_sure_the_draw_is_from_p() -> None:
    """0 / 0: h = 1, and nothing is left to draw from but p itself; only rounding could refuse the next token."""
    law = law_of([1, 3], [0, 1])
    equal = TargetLaw(law.ids, np.array([0.25, 0.75], np.float32), 0.0)
    draft = Draft(DraftTree.chain([1, 1]), SAMPLED, (law, law))
    reply = Verification(VerifyForm.PQ, np.array([NO_OUTSIDE, NO_OUTSIDE, 2], np.uint32), (equal, equal))
    assert block_rule(draft, reply, np.array([0.9, 0.5, 0.5])).nodes == (1, 2)
    last = block_rule(draft, reply, np.array([0.2, 0.5, 1.0]))
    assert (last.nodes, last.token, last.bonus) == ((1,), 0, False)
    assert block_rule(draft, reply, np.array([0.9, 1.0, 1.0])).token == 1


def test_nothing_is_kept_behind_a_token_that_the_target_forbids() -> None:
    """pi = 0, not even at u = 0; and no logarithm of 0 is a number that leaks."""
    law = law_of([1, 1], [0, 1])
    forbids = TargetLaw(law.ids, np.array([0, 0.5], np.float32), 0.5)
    draft = Draft(DraftTree.chain([0, 1]), SAMPLED, (law, law))
    reply = Verification(VerifyForm.PQ, np.array([5, 6, 7], np.uint32), (forbids, forbids))
    got = block_rule(draft, reply, np.zeros(3))
    assert got == Acceptance((), 5, False, (0.5,), (0.5,))


def test_the_outside_sample_is_never_emitted_where_nothing_lies_outside() -> None:
    toy = random_toy(4, vocab=5, support=3, tail=False, zeros=True)
    for draft, _ in drafts(toy, SAMPLED, CHAIN[2], ()):
        verification, _ = pq_reply(toy, draft, ())
        for last in (0.0, 0.5, ALMOST_1):
            got = block_rule(draft, verification, np.array([last, ALMOST_1, ALMOST_1]))
            assert got.token != NO_OUTSIDE and got.token < 1000 + 2


def test_a_long_chain_of_unlikely_tokens_recovers() -> None:
    """120 tokens of p / q = 2e-7, then 130 of more than 1e11: the product leaves float64 on its way, and returns."""
    rare = TargetLaw(np.arange(2, dtype=np.uint32), np.array([1e-7, 1 - 1e-7], np.float32), 0.0)
    often = TargetLaw(rare.ids, np.array([0.5, 0.5], np.float32), 0.0)
    sure = law_of([1, 1])
    rarely = DraftLaw(sure.ids, np.array([6e-8, 32768], np.float16))
    k = 250
    laws, targets = (sure,) * 120 + (rarely,) * (k - 120), (rare,) * 120 + (often,) * (k - 120)
    drawn = np.full(k + 1, 9, np.uint32)
    draft = Draft(DraftTree.chain([0] * k), SAMPLED, laws)
    reply = Verification(VerifyForm.PQ, drawn, targets)
    log_pi = block_weights(draft, [(t.p.astype(np.float64), 0.0) for t in targets])
    assert min(log_pi) < -745 and log_pi[-1] == 0.0
    got = block_rule(draft, reply, np.full(k + 1, ALMOST_1))
    assert len(got.nodes) == k
    assert all(0.0 <= chance <= 1.0 for chance in got.exact_chances)


def test_weights_are_those_of_the_formulas() -> None:
    assert child_weight(np.log(0.5), 0.2, 0.4) == pytest.approx(np.log(0.25))
    assert child_weight(0.0, 0.4, 0.2) == 0.0
    assert child_weight(0.0, 0.0, 0.2) == -np.inf
    assert kept_chance(0.0, 0.0) == 1.0
    assert kept_chance(np.log(0.5), 0.25) == pytest.approx(1 / 3)
    assert kept_chance(np.log(0.5), 0.0) == 0.0


def test_block_refuses_trees() -> None:
    law = law_of([1, 1])
    tree = Draft(DraftTree(np.array([0, 1], np.uint32), np.array([0, 0])), SAMPLED, (law,))
    target = TargetLaw(law.ids, np.array([0.5, 0.5], np.float32), 0.0)
    reply = Verification(VerifyForm.PQ, np.array([2, 2, 2], np.uint32), (target,))
    with pytest.raises(AssertionError, match="traversal"):
        block_rule(tree, reply, np.zeros(3))


# Wrong rules: the formula of section 4, each with one change.


def formula(
    kept: Callable[[list[float], list[float], Floats], int], scaled: bool = True
) -> Callable[[Draft, Verification, Floats], Acceptance]:
    """Block verification written out; kept(pi, h, us) -> tau."""

    def rule(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
        k = draft.tree.num_draft_tokens
        pi, h = [1.0], [0.0]
        laws = [normalised(target) for target in verification.laws]
        for i, ((p, _), law) in enumerate(zip(laws, draft.laws, strict=True)):
            x = int(np.flatnonzero(law.ids == draft.tree.token(i + 1))[0])
            pi.append(min(1.0, pi[-1] * p[x] / law.q[x]))
        for i in range(1, k):
            (p, tail), q = laws[i], draft.laws[i].q
            z = np.maximum(pi[i] * p - q, 0).sum() + pi[i] * tail
            h.append(z / (z + 1 - pi[i]) if z + 1 - pi[i] else 1.0)
        h.append(pi[k])
        tau = kept(pi, h, us)
        nodes = tuple(range(1, tau + 1))
        if tau == k:
            return Acceptance(nodes, int(verification.drawn[k]), True)
        (p, tail), q = laws[tau], draft.laws[tau].q
        scale = pi[tau] if scaled else 1.0
        rest = np.append(np.maximum(scale * p - q, 0), scale * tail)
        i = draw(rest if rest.any() else np.append(p, tail), us[0])
        token = int(draft.laws[tau].ids[i]) if i < len(q) else int(verification.drawn[tau])
        return Acceptance(nodes, token, False)

    return rule


def last_below(numbers: list[float], chances: list[float]) -> int:
    return max((i for i in range(1, len(chances)) if numbers[i] < chances[i]), default=0)


def right(pi: list[float], h: list[float], us: Floats) -> int:
    return last_below([us[i] for i in range(len(h))], h)


def stops_at_the_first_failure(pi: list[float], h: list[float], us: Floats) -> int:
    tau = 0
    while tau + 1 < len(h) and us[tau + 1] < h[tau + 1]:
        tau += 1
    return tau


def pi_for_h(pi: list[float], h: list[float], us: Floats) -> int:
    return last_below([us[i] for i in range(len(h))], pi)


def one_u_for_all(pi: list[float], h: list[float], us: Floats) -> int:
    return last_below([us[1]] * len(h), h)


WRONG = {
    "stop at the first failure": (formula(stops_at_the_first_failure), 0.186),
    "pi instead of h": (formula(pi_for_h), 0.136),
    "one u for all": (formula(one_u_for_all), 0.010),
    "residual not scaled by pi": (formula(right, scaled=False), 0.004),
}


def three_tokens(rule: Rule, toy: Toy) -> dict[object, float]:
    return Cycling(rule, VerifyForm.PQ, SAMPLED, CHAIN[2]).one_cycle(toy, (), 3)


@pytest.mark.parametrize("fault", WRONG)
def test_the_law_test_refuses_wrong_rules(fault: str) -> None:
    """T4, k = 2, three tokens: by the total variations of section 14."""
    rule, off = WRONG[fault]
    got, target = three_tokens(rule, T4), sequence_law(T4, (), 3)
    assert distance(got, target) == pytest.approx(off, abs=5e-4)
    with pytest.raises(AssertionError):
        assert_lawful(got, target)


@pytest.mark.parametrize("toy", [B2, T3], ids=str)
@pytest.mark.parametrize("fault", ["one u for all", "residual not scaled by pi"])
def test_b2_and_t3_cannot_see_two_of_the_faults(toy: Toy, fault: str) -> None:
    """Why the control runs on T4."""
    assert distance(three_tokens(WRONG[fault][0], toy), sequence_law(toy, (), 3)) < 1e-6


def test_the_formula_without_a_fault_is_the_rule() -> None:
    for toy in (T4, random_toy(2, vocab=4, support=2)):
        assert_lawful(three_tokens(formula(right), toy), sequence_law(toy, (), 3))
    rng = np.random.default_rng(8)
    for i in range(500):
        draft, verification = random_chain(rng)
        us = uniforms(i, 0, Purpose.ACCEPT, draft.tree.num_nodes)
        got, want = block_rule(draft, verification, us), formula(right)(draft, verification, us)
        assert (got.nodes, got.token, got.bonus) == (want.nodes, want.token, want.bonus)
