from __future__ import annotations

import random

import pytest

from specdec.core.drift import LEAST, SAG, Drift, observed


def fed(drift: Drift, alpha: float, positions: int, seed: int = 0) -> Drift:
    chance = random.Random(seed)
    return observed(drift, (float(chance.random() < alpha) for _ in range(positions)))


def test_nothing_is_said_before_enough_positions() -> None:
    assert fed(Drift(0.9), 0.0, LEAST - 1).difference is None
    assert not fed(Drift(0.9), 0.0, LEAST - 1).sagging
    assert fed(Drift(0.9), 0.0, LEAST).difference == pytest.approx(-0.9)
    assert fed(Drift(0.9), 0.0, LEAST).sagging


@pytest.mark.parametrize("seed", range(5))
def test_a_drafter_as_good_as_its_profile_never_sags(seed: int) -> None:
    chance, drift = random.Random(seed), Drift(0.6)
    for _ in range(20_000):
        drift = observed(drift, [float(chance.random() < 0.6)])
        assert not drift.sagging


def test_a_sag_is_seen_within_a_few_memories_and_so_is_the_recovery() -> None:
    good = fed(Drift(0.8), 0.8, 5000)
    bad = fed(good, 0.5, 1000)
    assert bad.sagging and bad.difference is not None and bad.difference < -SAG
    assert not fed(bad, 0.8, 2000).sagging


def test_between_the_two_thresholds_the_verdict_stays() -> None:
    between = 0.8 - 0.75 * SAG
    assert not observed(Drift(0.8), [between] * 5000).sagging
    assert observed(Drift(0.8, sagging=True), [between] * 5000).sagging


def test_better_than_expected_is_no_sag() -> None:
    drift = fed(Drift(0.3), 0.9, 1000)
    assert not drift.sagging and drift.difference is not None and drift.difference > 0.5
