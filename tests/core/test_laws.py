from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.draft import DraftKind, DraftLaw
from specdec.core.errors import DraftFault
from specdec.core.laws import draft_law, draw, draw_siblings
from specdec.core.randomness import Purpose, uniforms
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
def test_the_support_is_the_likeliest_ids_in_descending_order_ties_to_the_lowest(p: list[float], support: int) -> None:
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
