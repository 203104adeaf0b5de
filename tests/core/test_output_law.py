"""DESIGN.md, section 10, test 1: for every rule, payload and kind of draft, the exact law of what is emitted
equals the target's. A new rule joins by an entry in SUITES."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec.core.acceptance import Acceptance, Rule, token_rule
from specdec.core.block import block_rule
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.rules import LOSSY, RULES
from specdec.core.traversal import traversal_rule
from specdec.core.verification import Verification, VerifyForm
from tests.core.cycles import Cycling
from tests.core.integration import Floats, assert_lawful, distance
from tests.core.toys import (
    B2,
    C2,
    CHAIN,
    PAIR_5,
    SPARSE_T3,
    T3,
    T4,
    Tokens,
    Toy,
    constant,
    random_toy,
    sequence_law,
)

CHOSEN, SAMPLED, WITHOUT = DraftKind.CHOSEN, DraftKind.SAMPLED, DraftKind.SAMPLED_WITHOUT_REPLACEMENT
TREES: tuple[Tokens, ...] = ((0, 0), (0, 0, 0), (0, 0, 1, 2), (0, 0, 1, 1))
SUITES: dict[str, tuple[VerifyForm, dict[DraftKind, tuple[Tokens, ...]]]] = {
    "coupled": (VerifyForm.Y, {CHOSEN: (*CHAIN.values(), *TREES), SAMPLED: (CHAIN[2], (0, 0, 1))}),
    "rejection": (
        VerifyForm.PQ,
        {SAMPLED: (*(CHAIN[k] for k in range(4)), *TREES), WITHOUT: (CHAIN[2], *TREES)},
    ),
    "block": (VerifyForm.PQ, {SAMPLED: tuple(CHAIN[k] for k in range(4)), WITHOUT: (CHAIN[2],)}),
    "traversal": (
        VerifyForm.PQ,
        {SAMPLED: (*(CHAIN[k] for k in range(4)), *TREES), WITHOUT: (CHAIN[2], *TREES, (0, 1, 1, 0))},
    ),
}


def beyond_the_vocabulary(toy: Toy) -> Toy:
    """The same with an id in S, of weight 0, that the target does not have."""

    def law(context: Tokens) -> DraftLaw:
        here = toy.draft(context)
        ids = np.insert(here.ids, 1, np.uint32(900))
        return DraftLaw(ids, np.insert(here.weights, 1, np.float16(0)))

    return replace(toy, name=f"{toy.name}, an id beyond", draft=law)


PAYLOADS = {
    "whole vocabulary": random_toy(1),
    "truncated": random_toy(2, vocab=4, support=2),
    "tail 0": random_toy(3, vocab=4, support=2, tail=False),
    "zeros inside S": random_toy(4, vocab=4, support=3, zeros=True),
    "zeros and tail 0": random_toy(5, vocab=4, support=3, tail=False, zeros=True),
    "point mass": random_toy(6, vocab=4, support=1),
    "beyond the vocabulary": beyond_the_vocabulary(random_toy(7, vocab=4, support=2)),
}


CASES = {
    f"{name}-{kind.name.lower()}-{''.join(map(str, shape)) or 'plain'}": Cycling(RULES[name], form, kind, shape)
    for name, (form, shapes_of) in SUITES.items()
    for kind, shapes in shapes_of.items()
    for shape in shapes
}


def test_every_rule_has_a_suite() -> None:
    assert set(SUITES) == set(RULES) - LOSSY


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("case", CASES)
def test_one_cycle_emits_by_the_targets_law(case: str, payload: str) -> None:
    """One cycle and then the target alone: three tokens have the target's joint law."""
    toy = PAYLOADS[payload]
    assert_lawful(CASES[case].one_cycle(toy, (), 3), sequence_law(toy, (), 3))


@pytest.mark.parametrize("payload", ["whole vocabulary", "truncated", "zeros and tail 0"])
@pytest.mark.parametrize("case", [name for name, cycling in CASES.items() if len(cycling.shape) <= 3])
def test_many_cycles_emit_by_the_targets_law(case: str, payload: str) -> None:
    toy = PAYLOADS[payload]
    assert_lawful(CASES[case].many_cycles(toy, (1,), 3), sequence_law(toy, (1,), 3))


@pytest.mark.parametrize("seed", range(12))
def test_random_laws_and_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(2, 5))
    support = int(rng.integers(1, vocab + 1))
    toy = random_toy(100 + seed, vocab=vocab, support=support, tail=bool(rng.integers(2)))
    shape = tuple(int(rng.integers(0, i + 1)) for i in range(3))
    for kind in (SAMPLED, WITHOUT):
        for rule in (token_rule, traversal_rule):
            cycling = Cycling(rule, VerifyForm.PQ, kind, shape)
            assert_lawful(cycling.one_cycle(toy, (), 3), sequence_law(toy, (), 3))
    cycling = Cycling(block_rule, VerifyForm.PQ, SAMPLED, CHAIN[3])
    assert_lawful(cycling.one_cycle(toy, (), 3), sequence_law(toy, (), 3))


@pytest.mark.parametrize("toy", [T3, T4, B2, C2, SPARSE_T3, PAIR_5], ids=str)
def test_the_toy_laws_of_section_14(toy: Toy) -> None:
    for kind, shape in ((SAMPLED, CHAIN[2]), (SAMPLED, (0, 0)), (WITHOUT, (0, 0))):
        for rule in (token_rule, traversal_rule):
            cycling = Cycling(rule, VerifyForm.PQ, kind, shape)
            assert_lawful(cycling.one_cycle(toy, (), 2), sequence_law(toy, (), 2))
    block = Cycling(block_rule, VerifyForm.PQ, SAMPLED, CHAIN[2])
    assert_lawful(block.one_cycle(toy, (), 3), sequence_law(toy, (), 3))


@pytest.mark.scenario("B07")
@pytest.mark.parametrize("shape", [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 2)], ids=str)
def test_siblings_are_judged_in_order_against_the_running_residual(shape: Tokens) -> None:
    """PAIR-5 with one to four siblings, and depth 2. The injectors are in test_wrong_rules."""
    for kind in (SAMPLED, WITHOUT):
        if kind is WITHOUT or len(shape) < 4:
            law = Cycling(token_rule, VerifyForm.PQ, kind, shape).one_cycle(PAIR_5, (), 1)
            assert_lawful(law, sequence_law(PAIR_5, (), 1))


@pytest.mark.scenario("B02")
def test_a_deterministic_draft_is_exact_in_the_y_form_and_as_a_point_mass() -> None:
    """PAIR-5, always token 1: followed, or judged with q = 1. Only its softmax q would be wrong."""
    follow = Cycling(RULES["coupled"], VerifyForm.Y, CHOSEN, CHAIN[1])
    judge = Cycling(token_rule, VerifyForm.PQ, SAMPLED, CHAIN[1])
    point = constant("always 1", (0.50, 0.20, 0.15, 0.10, 0.05), (1,), (1,))
    for cycling in (follow, judge):
        assert_lawful(cycling.one_cycle(point, (), 1), sequence_law(point, (), 1))
        assert cycling.expected_accepted(point) == pytest.approx(0.2, abs=1e-6)


@pytest.mark.scenario("B10")
def test_filtered_laws_keep_the_filtered_support_exactly() -> None:
    """top_k = 2 on both sides of PAIR-5: nothing but 0 and 1 comes out. Target rows left unfiltered leak 30
    %."""
    p = (5 / 7, 2 / 7, 0, 0, 0)
    cycling = Cycling(token_rule, VerifyForm.PQ, SAMPLED, CHAIN[2])
    filtered = constant("top 2", p, (2, 1), (1, 0))
    law = cycling.one_cycle(filtered, (), 2)
    assert_lawful(law, sequence_law(filtered, (), 2))
    assert all(set(tokens) <= {0, 1} for tokens, mass in law.items() if mass > 0)
    leaking = constant("raw target", (0.50, 0.20, 0.15, 0.10, 0.05), (2, 1), (1, 0))
    first = cycling.one_cycle(leaking, (), 1)
    assert sum(mass for (token,), mass in first.items() if token > 1) == pytest.approx(0.3, abs=1e-6)


# Under the token rule and under block (chains) or traversal (trees), which is not longer on every tree.
EXPECTED_ACCEPTED = [
    (B2, SAMPLED, CHAIN[2], 10 / 9, 11 / 9),
    (T3, SAMPLED, CHAIN[2], 0.96, 26 / 25),
    (T3, SAMPLED, CHAIN[3], 1.176, 1.378),
    (T4, SAMPLED, CHAIN[2], 0.75, 0.84),
    (B2, WITHOUT, (0, 0, 1, 2), 5 / 3, 16 / 9),
    (C2, WITHOUT, (0, 1, 1, 3), 168 / 125, 159 / 125),
]


@pytest.mark.parametrize(("toy", "kind", "shape", "walk", "whole"), EXPECTED_ACCEPTED, ids=str)
def test_expected_accepted_tokens(toy: Toy, kind: DraftKind, shape: Tokens, walk: float, whole: float) -> None:
    rules: dict[Rule, float] = {token_rule: walk, traversal_rule: whole}
    if shape in CHAIN.values():
        rules[block_rule] = whole
    for rule, expected in rules.items():
        got = Cycling(rule, VerifyForm.PQ, kind, shape).expected_accepted(toy)
        assert got == pytest.approx(expected, abs=1e-6)


# The same check must refuse wrong rules over positions and cycles (first-token controls: test_wrong_rules).


def wrong_row(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """The target's laws of the positions after the first changed places."""
    laws = verification.laws
    return token_rule(draft, replace(verification, laws=(laws[0], *laws[:0:-1])), us)


def bonus_after_rejection(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """The last node's draw, whatever was accepted: index -1."""
    got = token_rule(draft, verification, us)
    return replace(got, token=int(verification.drawn[-1]))


def shared_u(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """One u for every node."""
    return token_rule(draft, verification, np.full(len(us), us[1]))


def reused_u(draft: Draft, verification: Verification, us: Floats) -> Acceptance:
    """The residual is drawn with the u of the first node."""
    return token_rule(draft, verification, np.array([us[1], *us[1:]]))


@pytest.mark.scenario("B12")
@pytest.mark.parametrize("rule", [wrong_row, bonus_after_rejection, shared_u, reused_u])
def test_the_law_test_refuses_wrong_rules_on_chains(rule: object) -> None:
    """The residual of another row, of the last row, or drawn with a number that is not fresh."""
    toy = replace(random_toy(8), name="same support at every position")
    law = toy.draft(())
    toy = replace(toy, draft=lambda context: law)
    wrong = Cycling(rule, VerifyForm.PQ, SAMPLED, CHAIN[3])  # type: ignore[arg-type]
    right = replace(wrong, rule=token_rule)
    assert_lawful(right.one_cycle(toy, (), 3), sequence_law(toy, (), 3))
    for got, length in ((wrong.one_cycle(toy, (), 3), 3), (wrong.many_cycles(toy, (), 2), 2)):
        assert distance(got, sequence_law(toy, (), length)) > 1e-3
        with pytest.raises(AssertionError):
            assert_lawful(got, sequence_law(toy, (), length))
