"""The planner in worlds with known laws and times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.planner import START, Planner, observe, plan, served_by
from specdec.core.source_record import FIRST_PROBE, LAST_PROBE, CycleOutcome
from specdec.core.speedup import expected_tokens
from specdec.core.step_time import StepTimeTable

MAX_K = 12


@dataclass
class World:
    """Seconds of virtual time. chance(i): that position i is accepted once reached; comes: how many of k
    arrive."""

    chance: Callable[[int], float]
    draft: float = 1.0
    verify: Callable[[int], float] = lambda rows: 10.0
    draft_network: float = 0.0
    verify_network: float = 0.0
    comes: Callable[[int, np.random.Generator], int] = lambda k, rng: k
    exact: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def cycle(self, k: int, batch: int = 1) -> CycleOutcome:
        n = self.comes(k, self.rng)
        accepted, alphas = 0, []
        while accepted < n:
            alphas.append(self.chance(accepted))
            if self.rng.random() >= alphas[-1]:
                break
            accepted += 1
        return CycleOutcome(
            asked=k,
            depth=n,
            rows=n + 1,
            accepted=accepted,
            draft_seconds=n * self.draft if k else None,
            draft_network=self.draft_network if k else 0.0,
            verify_seconds=self.verify(batch * (n + 1)),
            verify_network=self.verify_network,
            batch=batch,
            alphas=tuple(alphas) if self.exact else (),
        )


def seconds(cycle: CycleOutcome) -> float:
    assert cycle.verify_seconds is not None
    return (cycle.draft_seconds or 0.0) + cycle.draft_network + cycle.verify_seconds + cycle.verify_network


def live(
    world: World, cycles: int, planner: Planner | None = None, k: int | None = None
) -> tuple[Planner, list[int], float]:
    """The planner afterwards, the k of each cycle, and tokens per second; k given: fixed."""
    planner, ks, tokens, spent = planner or Planner(), [], 0, 0.0
    for _ in range(cycles):
        ks.append(plan(planner, MAX_K) if k is None else k)
        outcome = world.cycle(ks[-1])
        tokens, spent = tokens + outcome.accepted + 1, spent + seconds(outcome)
        planner = observe(planner, outcome)
    return planner, ks, tokens / spent if spent else 0.0


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


def crowd(n: int, alpha: float, cycles: int, fixed: int | None = None, *, rows_told: bool = True) -> float:
    """Tokens per second of n sessions in lockstep: verify is flat up to 16 rows and linear above, in virtual
    time."""
    worlds = [World(lambda i: alpha, draft=0.05, rng=np.random.default_rng(i)) for i in range(n)]
    planners, tokens, spent = [Planner() for _ in worlds], 0, 0.0
    for _ in range(cycles):
        ks = [plan(p, 8) if fixed is None else fixed for p in planners]
        outcomes = [w.cycle(k, n) for w, k in zip(worlds, ks, strict=True)]
        rows = sum(o.rows for o in outcomes)
        verify = max(rows, 16) / 16
        spent += max(o.draft_seconds or 0.0 for o in outcomes) + verify
        tokens += sum(o.accepted + 1 for o in outcomes)
        told = rows if rows_told else 0
        outcomes = [replace(o, verify_seconds=verify, batch_rows=told) for o in outcomes]
        planners = [observe(p, o) for p, o in zip(planners, outcomes, strict=True)]
    return tokens / spent


@pytest.mark.scenario("B127")
@pytest.mark.parametrize("rows_told", [True, False])
@pytest.mark.parametrize("n", [1, 8, 64])
def test_speculation_backs_off_when_the_verifier_is_saturated(n: int, rows_told: bool) -> None:
    """Virtual time, acceptance .3: at least 97 % of plain decoding at any concurrency, 95 % where the verifier does not
    tell the rows of its forwards. Speculation that does not back off would lose more than half."""
    plain = crowd(n, 0.3, 500, fixed=0)
    assert crowd(n, 0.3, 500, rows_told=rows_told) >= (0.97 if rows_told else 0.95) * plain
    if n == 64:
        assert crowd(n, 0.3, 50, fixed=4) < 0.5 * plain


@pytest.mark.scenario("B127")
def test_speculation_gains_where_there_is_room() -> None:
    """Concurrency 1, acceptance .8."""
    assert crowd(1, 0.8, 500) >= 1.5 * crowd(1, 0.8, 500, fixed=0)


@pytest.mark.parametrize("told", [True, False])
def test_rows_do_not_look_free_where_all_wait_for_each_others_forwards(told: bool) -> None:
    """The wait before a long forward happens to be short, so that all cycles take as long. Without being told how much
    of that was waiting the planner would draft for next to nothing."""
    planner, world = Planner(), World(lambda i: 0.2, draft=0.0)
    for number in range(200):
        outcome = world.cycle(4 if number % 2 else 0)
        wait = 20.0 - 2.0 * outcome.rows
        planner = observe(planner, replace(outcome, verify_seconds=20.0, verify_queue=wait if told else 0.0))
    assert (plan(planner, MAX_K) == 0) is told


@pytest.mark.parametrize(("batch", "gain", "asks"), [(1, 1.05, True), (32, 1.05, False), (32, 1.2, True)])
def test_among_many_a_draft_has_to_promise_more_than_nothing(batch: int, gain: float, asks: bool) -> None:
    """A draft of one token that is always accepted, in a world where two rows take 2 / gain of one's time."""
    table = StepTimeTable.of((batch, 2 * batch), (0,), [[10.0], [20.0 / gain]])
    world = World(lambda i: 1.0, draft=0.0, exact=True, verify=lambda rows: table.estimate(rows, 0))
    planner = Planner(table)
    for number in range(60):
        planner = observe(planner, world.cycle(number % 2, batch))
    planner = replace(planner, cycles=planner.cycles + 1)  # no cycle of a probe
    assert (plan(planner, 1) == 1) is asks


# With the verifier's own table.

STEP_TABLE = StepTimeTable.of((1, 4, 5, 8), (0, 4000), [[10.0, 20.0], [10.0, 20.0], [20.0, 30.0], [20.0, 30.0]])
FLAT_TABLE = StepTimeTable.of((1, 64), (0,), [[10.0], [11.0]])
STEEP_TABLE = StepTimeTable.of((1, 64), (0,), [[10.0], [640.0]])


def test_a_table_with_a_step_keeps_the_first_draft_below_it() -> None:
    """Five rows cost twice what four do: three draft tokens and the root, before anything was seen. Then the same."""
    planner = Planner(step_times=STEP_TABLE)
    assert plan(planner, MAX_K) == 3
    assert plan(Planner(step_times=FLAT_TABLE), MAX_K) == START
    assert plan(Planner(), MAX_K) == START
    world = World(lambda i: 0.8, draft=0.2, verify=lambda rows: STEP_TABLE.estimate(rows, 0))
    _, ks, rate = live(world, 300, planner)
    assert ks[-200:].count(3) > 190
    assert rate > 1.05 * live(world, 300, k=4)[2]


def test_the_step_is_found_at_the_context_that_there_is() -> None:
    """Behind a long context the prompt's keys cost more than a few rows, so the step is none."""
    long = StepTimeTable.of((1, 4, 5, 8), (0, 4000), [[10.0, 90.0], [10.0, 90.0], [20.0, 91.0], [20.0, 91.0]])
    planner = Planner(step_times=long)
    assert plan(planner, MAX_K, context=0) == 3
    assert plan(planner, MAX_K, context=4000) == START


def test_where_rows_are_dear_by_the_table_nothing_is_drafted_but_probes() -> None:
    planner = Planner(step_times=STEEP_TABLE)
    world = World(lambda i: 0.5, draft=0.0, verify=lambda rows: STEEP_TABLE.estimate(rows, 0))
    _, ks, rate = live(world, 200, planner)
    assert not any(ks[:FIRST_PROBE])
    assert 1 <= sum(k > 0 for k in ks) <= 10
    assert rate > 0.95 * live(world, 200, k=0)[2]


@pytest.mark.parametrize(("table", "share"), [(FLAT_TABLE, 0.9), (STEP_TABLE, 0.83)])
@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_a_table_that_is_wrong_is_corrected_by_what_cycles_take(
    table: StepTimeTable, share: float, alpha: float
) -> None:
    """In another unit too: a hundredth of the table's seconds. In truth rows are dear, or there is no step."""
    for per_row in (0.001, 0.04):
        world = World(lambda i: alpha, draft=0.005, verify=lambda rows, c=per_row: 0.1 + c * rows)  # type: ignore[misc]
        best = max(expected_tokens(alpha, k) / (0.005 * k + 0.1 + per_row * (k + 1)) for k in range(MAX_K + 1))
        planner, _, _ = live(world, 300, Planner(step_times=table))
        assert live(world, 800, planner)[2] > share * best, per_row


def test_another_verifier_brings_its_table_and_what_was_learned_of_the_first_one_goes() -> None:
    world = World(lambda i: 0.9, exact=True, draft=0.01, verify=lambda rows: FLAT_TABLE.estimate(rows, 0))
    planner, ks, _ = live(world, 100, Planner(step_times=FLAT_TABLE))
    assert ks[-1] > START
    assert served_by(planner, FLAT_TABLE) is planner
    moved = served_by(planner, STEP_TABLE)
    assert plan(moved, MAX_K) == 3
    assert moved.sources is planner.sources
    assert plan(served_by(planner, None), MAX_K) == START
