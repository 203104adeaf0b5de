"""A draft that is right, and what makes it wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import DraftFault
from specdec.core.laws import MAX_SUPPORT, check_draft, check_draws, draw, draw_siblings
from specdec.core.randomness import Purpose, uniforms
from specdec.core.tree import DraftTree
from tests.core.toys import law_of

V = 50
CHOSEN, SAMPLED, WITHOUT = DraftKind.CHOSEN, DraftKind.SAMPLED, DraftKind.SAMPLED_WITHOUT_REPLACEMENT


def sampled(seed: int, base: int, kind: DraftKind = SAMPLED) -> Draft:
    """Root with two children, the first of which has one: drawn as a drafter draws."""
    us = uniforms(seed, base, Purpose.DRAFT, 4)
    root, below = law_of([3, 0, 2, 1], [7, 9, 1, 4]), law_of([1, 1], [40, 3])
    if kind is WITHOUT:
        first, second = draw_siblings(root, us[1:3])
    else:
        first, second = draw(root.q, us[1]), draw(root.q, us[2])
    third = draw(below.q, us[3])
    ids = np.array([root.ids[first], root.ids[second], below.ids[third]], np.uint32)
    return Draft(DraftTree(ids, np.array([0, 0, 1])), kind, (root, below), "scripted")


def chosen(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(DraftTree(np.array(tokens, np.uint32), np.array(parents)))


@pytest.mark.parametrize("kind", [SAMPLED, WITHOUT])
def test_honest_drafts_pass_both_checks(kind: DraftKind) -> None:
    for seed in range(300):
        draft = sampled(seed, seed % 7, kind)
        check_draft(draft, V)
        check_draws(draft, seed, seed % 7)


def test_chosen_and_empty_drafts_pass_both_checks() -> None:
    for draft in (chosen([], []), chosen([1, 2, 1], [0, 0, 1]), replace(chosen([], []), kind=SAMPLED)):
        check_draft(draft, V)
        check_draws(draft, 1, 1)


def swap_law(draft: Draft, law: DraftLaw) -> Draft:
    return replace(draft, laws=(law, *draft.laws[1:]))


GOOD = sampled(5, 0)
ROOT = GOOD.laws[0]
BAD_DRAFTS = {
    "laws in a chosen draft": replace(GOOD, kind=CHOSEN),
    "a law is missing": replace(GOOD, laws=GOOD.laws[:1]),
    "a law too many": replace(GOOD, laws=(*GOOD.laws, GOOD.laws[0])),
    "no laws": replace(GOOD, laws=()),
    "weights shorter than ids": swap_law(GOOD, DraftLaw(ROOT.ids, ROOT.weights[:-1])),
    "weights empty": swap_law(GOOD, DraftLaw(ROOT.ids, ROOT.weights[:0])),
    "nan": swap_law(GOOD, law_of([3, np.nan, 2, 1], ROOT.ids.tolist())),
    "infinite": swap_law(GOOD, law_of([3, np.inf, 2, 1], ROOT.ids.tolist())),
    "negative": swap_law(GOOD, law_of([3, -1, 2, 1], ROOT.ids.tolist())),
    "all zero": swap_law(GOOD, law_of([0, 0, 0, 0], ROOT.ids.tolist())),
    "empty support": swap_law(GOOD, law_of([], [])),
    "support too long": swap_law(GOOD, law_of([1] * (MAX_SUPPORT + 1))),
    "duplicate ids": swap_law(GOOD, law_of([3, 1, 2, 1], [7, 7, 1, 4])),
    "a child outside the support": swap_law(GOOD, law_of([1, 1], [30, 31])),
    "a child of weight 0": swap_law(GOOD, law_of([0, 1, 0, 0], ROOT.ids.tolist())),
    "weight beyond the vocabulary": swap_law(GOOD, law_of([3, 1, 2, 1, 1], [7, 9, 1, 4, V])),
    "chosen token beyond the vocabulary": chosen([V], [0]),
    "chosen siblings equal": chosen([3, 3], [0, 0]),
    "score is not a number": replace(GOOD, score=float("nan")),
}


@pytest.mark.scenario("B135")
@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_a_draft_that_must_not_be_judged_is_refused(name: str) -> None:
    """Laws that are none, of the wrong shape, or that could not have drawn their children."""
    with pytest.raises(DraftFault):
        check_draft(BAD_DRAFTS[name], V)


@pytest.mark.scenario("B05")
def test_a_draft_whose_laws_were_lost_is_refused_not_judged_by_another_rule() -> None:
    """Tokens without q, or with an empty one."""
    check_draft(GOOD, V)
    for lost in (replace(GOOD, laws=()), swap_law(GOOD, law_of([], []))):
        with pytest.raises(DraftFault):
            check_draft(lost, V)


@pytest.mark.parametrize("total", [0.5, 1.2, 40.0])
def test_weights_need_not_sum_to_1(total: float) -> None:
    """They are normalised on both sides by the same function."""
    draft = swap_law(GOOD, law_of((np.array([3, 0, 2, 1]) * total / 6).tolist(), ROOT.ids.tolist()))
    check_draft(draft, V)


def test_equal_siblings_are_lawful_only_with_replacement() -> None:
    twins = DraftTree(np.array([7, 7], np.uint32), np.array([0, 0]))
    check_draft(Draft(twins, SAMPLED, (ROOT,)), V)
    for kind, laws in ((WITHOUT, (ROOT,)), (CHOSEN, ())):
        with pytest.raises(DraftFault, match="twice"):
            check_draft(Draft(twins, kind, laws), V)


def test_ids_beyond_the_vocabulary_are_refused_by_their_weight_whatever_was_drawn() -> None:
    """Refusing only what was drawn there would choose drafts by their sampled tokens."""
    harmless = Draft(DraftTree.chain([7]), SAMPLED, (law_of([1, 0], [7, V + 3]),))
    check_draft(harmless, V)
    for token in (7, V + 3):
        with pytest.raises(DraftFault, match="vocabulary"):
            check_draft(Draft(DraftTree.chain([token]), SAMPLED, (law_of([1, 1], [7, V + 3]),)), V)


def test_a_draft_under_another_seed_or_base_is_refused() -> None:
    refused = 0
    for seed in range(100):
        for claim in ((seed + 1, 3), (seed, 4)):
            try:
                check_draws(sampled(seed, 3), *claim)
            except DraftFault:
                refused += 1
    assert refused > 150  # the rest drew the same tokens by chance


@pytest.mark.scenario("B01")
@pytest.mark.scenario("B09")
def test_a_drafter_that_samples_from_one_law_and_reports_another_is_caught() -> None:
    """Token by token the reported law must have drawn what was sent: here filtered, or rounded, before
    sampling."""
    reported = law_of([2, 4, 1, 1, 2])
    for used in (law_of([2, 4, 0, 0, 0]), law_of([2, 2, 2, 2, 2])):
        caught = 0
        for seed in range(400):
            u = uniforms(seed, 9, Purpose.DRAFT, 2)[1]
            for law in (used, reported):
                draft = Draft(DraftTree.chain([int(law.ids[draw(law.q, u)])]), SAMPLED, (reported,))
                check_draft(draft, 5)
                try:
                    check_draws(draft, seed, 9)
                except DraftFault:
                    assert law is used, "an honest draft was refused"
                    caught += 1
        assert caught > 100


@pytest.mark.scenario("B06")
def test_laws_that_changed_places_between_requests_are_caught() -> None:
    """A and B drawn from q and from q reversed, sent back with each other's laws."""
    q, reversed_q = law_of([2, 4, 1, 1, 2]), law_of([2, 1, 1, 4, 2])
    caught = 0
    for seed in range(400):
        token = int(q.ids[draw(q.q, uniforms(seed, 0, Purpose.DRAFT, 2)[1])])
        check_draws(Draft(DraftTree.chain([token]), SAMPLED, (q,)), seed, 0)
        try:
            check_draws(Draft(DraftTree.chain([token]), SAMPLED, (reversed_q,)), seed, 0)
        except DraftFault:
            caught += 1
    assert caught > 100


def test_siblings_sorted_after_drawing_are_caught() -> None:
    """By q or by id: either order tells the judge of another draw than the one that was made."""
    caught = 0
    for seed in range(100):
        draft = sampled(seed, 0, WITHOUT)
        first, second, third = draft.tree.token_ids
        turned = DraftTree(np.array([second, first, third], np.uint32), np.array([0, 0, 2]))
        try:
            check_draws(replace(draft, tree=turned, laws=draft.laws), seed, 0)
        except DraftFault:
            caught += 1
    assert caught == 100
