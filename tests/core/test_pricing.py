"""What cycles cost in the planner's eyes: under load, and by a verifier's own table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec.core.planner import START, Planner, observe, plan, served_by
from specdec.core.source_record import FIRST_PROBE
from specdec.core.speedup import expected_tokens
from specdec.core.step_time import StepTimeTable
from tests.core.one_source import MAX_K, World, live


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
