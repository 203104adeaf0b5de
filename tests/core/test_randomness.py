from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.randomness import Purpose, choice_seed, coupled_choice, target_key, target_noise, uniforms

WORDS = st.integers(0, 2**64 - 1)
MASK = 2**64 - 1


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def splitmix(key: int, number: int) -> int:
    """Output `number` of SplitMix64, by stepping through all before it."""
    state = key
    for _ in range(number + 1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def test_draft_numbers_equal_the_published_vector() -> None:
    got = uniforms(42, 5, Purpose.DRAFT, 3)
    np.testing.assert_allclose(got, [0.6261026433, 0.2936681563, 0.3709893184], atol=5e-11)


def test_target_noise_equals_the_published_vectors() -> None:
    assert target_key(42, 5) == 0xAAD2C877EF9D50F3
    assert splitmix(0, 0) == 0xE220A8397B1DCDAF
    assert splitmix(0xAAD2C877EF9D50F3, 7) == 0x754C255775CE6AEA
    for key, v in ((0, 0), (0xAAD2C877EF9D50F3, 7)):
        w = ((splitmix(key, v) >> 11) + 0.5) / 2**53
        assert target_noise(key, ids(v))[0] == -np.log1p(-w)


@given(key=WORDS, v=st.integers(0, 300))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_target_noise_is_splitmix_addressed_by_token(key: int, v: int) -> None:
    w = ((splitmix(key, v) >> 11) + 0.5) / 2**53
    assert target_noise(key, ids(3, v, 9))[1] == -np.log1p(-w)


def test_noise_is_positive_and_finite_up_to_the_last_id() -> None:
    noise = target_noise(2**64 - 1, np.append(np.arange(100_000, dtype=np.uint32), np.uint32(2**32 - 1)))
    assert noise.dtype == np.float64
    assert np.isfinite(noise).all()
    assert (noise > 0).all()
    assert noise.mean() == pytest.approx(1, abs=0.02)


@given(seed=WORDS, base=st.integers(0, 2**56 - 1), n=st.integers(0, 20))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_any_seed_and_base_have_numbers_and_fewer_are_a_prefix(seed: int, base: int, n: int) -> None:
    many = uniforms(seed, base, Purpose.ACCEPT, 21)
    assert ((many >= 0) & (many < 1)).all()
    np.testing.assert_array_equal(uniforms(seed, base, Purpose.ACCEPT, n), many[:n])


def test_seed_base_and_purpose_each_make_another_stream() -> None:
    places = [(s, b, p) for s in (0, 1, 2**64 - 1) for b in (0, 1, 255, 256) for p in Purpose]
    firsts = {float(uniforms(s, b, p, 1)[0]) for s, b, p in places}
    assert len(firsts) == len(places)


@pytest.mark.parametrize(("seed", "base"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**56)])
def test_what_does_not_fit_into_the_key_is_refused(seed: int, base: int) -> None:
    with pytest.raises(AssertionError):
        uniforms(seed, base, Purpose.DRAFT, 1)


def test_choice_0_keeps_the_seed_and_the_others_have_their_own() -> None:
    seeds = [choice_seed(7, i) for i in range(8)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 8
    key = np.array([7, 3 << 8 | 5], dtype=np.uint64)
    assert seeds[3] == np.random.Philox(key=key).random_raw()


def test_coupled_choice_is_the_winner_of_the_exponential_race() -> None:
    rng = np.random.default_rng(0)
    for key in range(200):
        p = rng.dirichlet(np.ones(9)) * (rng.random(9) < 0.7)
        p[4] = 0.1
        tokens = rng.permutation(1000)[:9].astype(np.uint32)
        e = target_noise(key, tokens)
        race = [(e[i] / p[i], tokens[i], i) for i in range(9) if p[i] > 0]
        assert coupled_choice(tokens, p, key) == min(race)[2]


def test_coupled_choice_never_takes_a_token_without_mass_and_knows_no_scale() -> None:
    tokens = np.arange(6, dtype=np.uint32)
    p = np.array([0, 0.5, 0, 0.25, 0.25, 0], np.float32)
    for key in range(300):
        x = coupled_choice(tokens, p, key)
        assert p[x] > 0
        assert coupled_choice(tokens, p * np.float32(0.125), key) == x
        assert coupled_choice(tokens[[1, 3, 4]], p[[1, 3, 4]], key) == [1, 3, 4].index(x)


def test_coupled_choice_breaks_ties_to_the_lowest_id() -> None:
    """Race times of subnormal p are all infinite, hence equal."""
    tokens = ids(9, 2, 5)
    assert coupled_choice(tokens, np.full(3, 5e-324), 1) == 1


def test_a_law_without_mass_has_no_draw() -> None:
    with pytest.raises(AssertionError, match="without mass"):
        coupled_choice(ids(1, 2), np.zeros(2), 0)
