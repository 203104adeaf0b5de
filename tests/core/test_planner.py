"""The planner in worlds with known laws and times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.planner import START, Planner, observe, plan
from specdec.core.source_record import LAST_PROBE, CycleOutcome
from specdec.core.speedup import expected_tokens
from tests.core.one_source import MAX_K, World, live


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.65, 0.8, 0.9])
def test_the_planner_comes_close_to_the_best_fixed_k(alpha: float, exact: bool) -> None:
    world = World(lambda i: alpha, exact=exact, verify=lambda rows: 10 + 0.3 * rows)
    best = max(expected_tokens(alpha, k) / (k + 10 + 0.3 * (k + 1)) for k in range(MAX_K + 1))
    assert live(world, 1500)[2] > 0.95 * best


def test_exact_alphas_make_the_plan_steadier() -> None:
    spread = [
        np.std(live(World(lambda i: 0.7, exact=exact, verify=lambda rows: 10 + 0.3 * rows), 1500)[1][100:])
        for exact in (False, True)
    ]
    assert spread[1] < 0.5 * spread[0]


def test_a_long_way_to_the_replicas_makes_drafts_longer() -> None:
    near = live(World(lambda i: 0.8), 800)[1]
    far = live(World(lambda i: 0.8, verify_network=20.0, draft_network=20.0), 800)[1]
    assert np.mean(far[200:]) > np.mean(near[200:]) + 2


def test_chances_are_learned_by_position() -> None:
    """Right for three tokens, then wrong: one alpha for all would never settle at 3."""
    ks = live(World(lambda i: float(i < 3), verify=lambda rows: 10 + 0.1 * rows), 300)[1]
    assert ks[-100:].count(3) >= 90
    assert set(ks[-100:]) <= {3, 4}


def test_speculation_that_does_not_pay_stops_but_for_rare_probes() -> None:
    plain = live(World(lambda i: 0.02), 2000, k=0)[2]
    _, ks, rate = live(World(lambda i: 0.02), 2000)
    assert rate > 0.97 * plain
    probes = np.flatnonzero(np.array(ks[50:]) > 0)
    assert 3 <= len(probes) <= 20
    assert np.diff(probes)[-1] > LAST_PROBE // 2


def test_a_text_that_has_become_easy_is_noticed() -> None:
    stopped, ks, _ = live(World(lambda i: 0.0), 400)
    assert sum(k > 0 for k in ks[-100:]) <= 2
    _, later, _ = live(World(lambda i: 0.95), 2 * LAST_PROBE + 100, stopped)
    assert np.mean(later[-50:]) > 4


def test_a_probe_that_is_accepted_whole_is_followed_up_also_where_drafting_is_dear() -> None:
    """One success in 25 tries would not do; without the follow-up this gains 1 %."""
    gains = []
    for seed in range(8):
        stopped, _, _ = live(World(lambda i: 0.02, draft=4.0, rng=np.random.default_rng(seed)), 200)
        easy = World(lambda i: 0.95, draft=4.0, rng=np.random.default_rng(seed + 100))
        gains.append(live(easy, 500, stopped)[2] / 0.1)
    assert np.mean(gains) > 1.3


def test_a_probe_waits_twice_as_long_each_time_and_afresh_once_drafting_has_settled() -> None:
    planner, ks, _ = live(World(lambda i: 0.0), 600)
    gaps = np.diff(np.flatnonzero(np.array(ks) > 0))
    gaps = gaps[gaps > 1]
    assert gaps.tolist() == sorted(gaps.tolist())
    assert planner.sources[""].doubt > 1
    settled, _, _ = live(World(lambda i: 0.95), 2 * LAST_PROBE + 100, planner)
    assert settled.sources[""].doubt == 1


def test_short_drafts_that_cost_nothing_are_worth_asking_for() -> None:
    """An n-gram that finds something in a third of the cycles, at once."""
    some = World(lambda i: 0.9, draft=0.0, comes=lambda k, rng: k * int(rng.random() < 1 / 3))
    plain = live(replace(some, rng=np.random.default_rng(0)), 1500, k=0)[2]
    _, ks, rate = live(some, 1500)
    assert np.mean(ks[100:]) > 4
    assert rate > 1.5 * plain


def test_a_drafter_that_never_answers_is_not_waited_for() -> None:
    """Nothing comes, and asking costs a round trip."""
    silent = World(lambda i: 1.0, draft_network=5.0, comes=lambda k, rng: 0)
    _, ks, rate = live(silent, 1000)
    assert rate > 0.97 * live(silent, 1000, k=0)[2]
    assert sum(k > 0 for k in ks[100:]) < 20


def test_a_drafter_whose_times_were_never_measured_is_judged_by_what_comes() -> None:
    """Others step in for it at once, with drafts that fail or that fit."""
    for chance, asked in ((0.0, 0), (0.95, 5)):
        world, planner = World(lambda i, p=chance: p, verify=lambda rows: 10 + 0.5 * rows), Planner()  # type: ignore[misc]
        for _ in range(40):
            planner = observe(planner, replace(world.cycle(plan(planner, MAX_K)), draft_seconds=None))
        assert (plan(planner, MAX_K) > 1) == (asked > 0), "at most a probe"
        assert plan(planner, MAX_K) >= asked


def test_nothing_known_of_the_times_means_the_starting_k() -> None:
    planner = Planner()
    assert plan(planner, MAX_K) == START
    assert plan(planner, 2) == 2
    assert plan(planner, 0) == 0
    prompt = CycleOutcome(asked=4, depth=4, rows=5, accepted=1)
    assert plan(observe(planner, prompt), MAX_K) == START


@given(max_k=st.integers(0, 20), seed=st.integers(0, 30))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_plan_never_exceeds_what_is_allowed(max_k: int, seed: int) -> None:
    world = World(lambda i: 0.9, rng=np.random.default_rng(seed))
    planner, _, _ = live(world, seed)
    assert 0 <= plan(planner, max_k) <= max_k


def test_one_long_pause_does_not_stop_speculation() -> None:
    world = World(lambda i: 0.8, exact=True)
    planner, ks, _ = live(world, 200)
    outcome = world.cycle(ks[-1])
    for pause in (replace(outcome, draft_seconds=1e4), replace(outcome, verify_seconds=1e4)):
        paused = observe(planner, pause)
        assert plan(paused, MAX_K) >= 3
        assert abs(live(world, 60, paused)[1][-1] - ks[-1]) <= 1


def test_drafters_are_learned_apart() -> None:
    planner = Planner()
    good, bad = World(lambda i: 0.95, exact=True), World(lambda i: 0.0, exact=True)
    for _ in range(60):
        planner = observe(planner, replace(good.cycle(6), drafter="good"))
        planner = observe(planner, replace(bad.cycle(6), drafter="bad"))
    assert plan(planner, MAX_K, "good") >= 6
    assert plan(planner, MAX_K, "bad") == 0


@pytest.mark.scenario("B125")
def test_what_one_session_learns_stays_its_own() -> None:
    """A liar's session, then an oracle's in the same process; and states are values that nothing changes."""
    first = Planner()
    liar, ks, _ = live(World(lambda i: 0.0), 100, first)
    assert ks[-1] == 0
    assert first == Planner()
    before = liar.sources[""]
    observe(liar, World(lambda i: 1.0).cycle(8))
    assert liar.sources[""] is before
    _, fresh, _ = live(World(lambda i: 1.0), 40)
    _, alone, _ = live(World(lambda i: 1.0), 40, Planner())
    assert fresh == alone
    assert fresh[-1] > 6
