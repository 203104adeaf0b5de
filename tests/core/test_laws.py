from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import DraftFault
from specdec.core.laws import MAX_SUPPORT, check_draft, check_draws, draft_law, draw, draw_siblings
from specdec.core.randomness import Purpose, uniforms
from specdec.core.tree import DraftTree
from tests.core.toys import law_of

V = 50
CHOSEN, SAMPLED, WITHOUT = DraftKind.CHOSEN, DraftKind.SAMPLED, DraftKind.SAMPLED_WITHOUT_REPLACEMENT
PROBS = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 1), st.floats(1e-300, 1e-3), st.sampled_from([0.25, 0.5])),
    min_size=1,
    max_size=40,
).filter(lambda p: max(p) > 0)
SETTINGS = settings(derandomize=True, deadline=None, max_examples=300)


def law_on(p: list[float], support: int = 32) -> DraftLaw:
    return draft_law(np.arange(len(p), dtype=np.uint32), np.array(p), support)


@given(p=PROBS, support=st.integers(1, 45))
@SETTINGS
def test_every_kept_weight_is_positive_finite_and_close_to_its_probability(p: list[float], support: int) -> None:
    law = law_on(p, support)
    assert 1 <= len(law.ids) <= support
    assert law.weights.dtype == np.float16
    assert np.isfinite(law.weights).all()
    assert (law.weights > 0).all()
    assert abs(law.q.sum() - 1) < 1e-12
    ratio = np.array(p)[law.ids] / max(p)
    got = law.weights.astype(float) / float(law.weights[0])
    coarse = ratio < 2.0**-28  # float16 is subnormal there
    np.testing.assert_allclose(got[~coarse], ratio[~coarse], rtol=2.0**-10)
    np.testing.assert_allclose(got[coarse], ratio[coarse], atol=2.0**-39)


@given(p=PROBS, support=st.integers(1, 45))
@SETTINGS
def test_the_support_is_the_likeliest_ids_in_descending_order_ties_to_the_lowest(
    p: list[float], support: int
) -> None:
    law = law_on(p, support)
    wanted = sorted((v for v in range(len(p)) if p[v] > 0), key=lambda v: (-p[v], v))[:support]
    assert law.ids.tolist() == wanted[: len(law.ids)]
    dropped = [p[v] / max(p) for v in wanted[len(law.ids) :]]
    assert all(ratio <= 2.0**-40 for ratio in dropped)


@given(p=PROBS, order=st.randoms(use_true_random=False))
@SETTINGS
def test_the_order_in_which_ids_are_given_does_not_matter(p: list[float], order: object) -> None:
    index = np.random.default_rng(len(p)).permutation(len(p))
    shuffled = draft_law(index.astype(np.uint32), np.array(p)[index], 8)
    straight = law_on(p, 8)
    assert shuffled.ids.tolist() == straight.ids.tolist()
    assert shuffled.weights.tobytes() == straight.weights.tobytes()


def test_a_point_mass_stays_a_point_mass() -> None:
    law = law_on([0, 0, 1, 0])
    assert law.ids.tolist() == [2]
    assert law.q.tolist() == [1.0]


def test_float32_subnormals_do_not_scale_to_infinity() -> None:
    law = draft_law(np.arange(3, dtype=np.uint32), np.array([1e-45, 0, 3e-45], np.float32), 3)
    assert law.ids.tolist() == [2, 0]
    np.testing.assert_allclose(law.q, [2 / 3, 1 / 3], rtol=1e-3)


@pytest.mark.parametrize("p", [[np.nan, 1.0], [np.inf, 1.0], [-0.1, 1.1], [0.0, 0.0], []])
def test_a_draft_model_that_yields_no_law_is_a_fault_of_the_drafter(p: list[float]) -> None:
    with pytest.raises(DraftFault):
        law_on(p)


@pytest.mark.scenario("B53")
def test_the_support_is_the_same_in_float32_and_float64() -> None:
    """p = [.3, .1, .1, .5] cut at the exact tie: both precisions, both orders keep the same ids."""
    ids = np.arange(4, dtype=np.uint32)
    p = np.array([0.3, 0.1, 0.1, 0.5])
    for support in range(1, 5):
        single, double = draft_law(ids, p.astype(np.float32), support), draft_law(ids, p, support)
        assert single.ids.tolist() == double.ids.tolist() == [3, 0, 1, 2][:support]
        assert single.weights.tobytes() == double.weights.tobytes()


def test_draw_inverts_the_running_sum() -> None:
    w = np.array([0.0, 2.0, 0.0, 1.0, 1.0, 0.0])
    cases = {0.0: 1, 0.4999: 1, 0.5: 3, 0.7499: 3, 0.75: 4, 1 - 2.0**-53: 4}
    assert {u: draw(w, u) for u in cases} == cases


@given(
    w=st.lists(st.sampled_from([0.0, 1e-320, 1e-17, 0.1, 1.0, 3.0]), min_size=1, max_size=20).filter(any),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53])),
)
@SETTINGS
def test_draw_never_takes_an_entry_of_weight_0(w: list[float], u: float) -> None:
    assert w[draw(np.array(w), u)] > 0


def test_a_draw_that_runs_off_the_end_takes_the_last_positive_weight() -> None:
    """u = 1 stands for a product that rounding carried up to the whole sum."""
    assert draw(np.array([1.0, 2.0, 0.0, 0.0]), 1.0) == 1


def test_siblings_are_distinct_and_end_where_q_runs_out() -> None:
    law = law_of([4, 0, 1, 2])
    for seed in range(200):
        drawn = draw_siblings(law, uniforms(seed, 0, Purpose.DRAFT, 5))
        assert sorted(drawn) == [0, 2, 3]
    assert draw_siblings(law, np.array([0.0, 0.0])) == [0, 2]


def test_the_second_sibling_has_the_conditional_law() -> None:
    """Given that the first was 0, entries 2 and 3 share the unit interval 1 : 2."""
    law = law_of([4, 0, 1, 2])
    seconds = [draw_siblings(law, np.array([0.1, u]))[1] for u in (0.0, 0.3332, 0.3334, 0.999)]
    assert seconds == [2, 2, 3, 3]


# A draft that is right, and what makes it wrong.


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
    """Token by token the reported law must have drawn what was sent: here filtered, or rounded, before sampling."""
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
