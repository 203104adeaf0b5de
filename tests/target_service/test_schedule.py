"""Rows and their prices: everybody is served, and nobody waits for a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.step_time import FLAT, StepTimeTable
from target_service.schedule import COMPANY, LEAST_CHUNK, Schedule, Work, share_rows, tuned_budget
from target_service.step_time import StepTimes
from tests.target_service.conftest import MakeEngine
from tests.target_service.driver import Turn, generate, run
from tests.target_service.wire import prompt


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 128), st.integers(1, 80))
def test_rows_never_exceed_budget_or_need_none_is_wasted_and_the_first_gets_some(
    needs: list[int], budget: int, whole: int
) -> None:
    given_rows = share_rows(needs, budget, whole)
    assert all(0 <= rows <= need for rows, need in zip(given_rows, needs, strict=True))
    assert sum(given_rows) == min(budget, sum(needs))
    assert given_rows[0] > 0


def test_short_jobs_are_whole_beside_a_long_prefill() -> None:
    assert share_rows([5000, 9, 9, 1], 64, whole=17) == [45, 9, 9, 1]


def test_a_tree_is_not_cut_for_the_sake_of_equality() -> None:
    assert share_rows([9] * 10, 32, whole=9) == [9, 9, 9, 5, 0, 0, 0, 0, 0, 0]


def test_nobody_starves_under_endless_new_arrivals() -> None:
    """Least recently served first, as the engine orders them: a prefill goes on though short jobs never cease."""
    left, served = 1000, 0
    while left > 0:
        needs = [left, *[9] * 20]
        rows = share_rows(needs, 64, whole=9)
        left, served = left - rows[0], served + 1
    assert served <= 1000 // 9 + 1
    assert share_rows([], 8, 4) == []


# With prices: seconds by a table, time that is told.

TABLE = StepTimeTable.of((1, 8, 64, 512), (0, 4096), [[0.01, 0.012], [0.012, 0.016], [0.04, 0.08], [0.3, 0.8]])
WHOLE = 9
LEAST_COST = TABLE.estimate(LEAST_CHUNK + 3 * WHOLE, 4096)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def schedule(clock: Clock, budget: int = 512, target: float | None = None) -> Schedule:
    return Schedule(budget, WHOLE, StepTimes(TABLE), target, clock)


@dataclass
class Day:
    """Sessions that verify a draft each time they have drafted, beside one prompt. latencies: of each verification;
    chunks: rows of the prompt in each forward."""

    schedule: Schedule
    clock: Clock
    left: int
    sessions: int = 3
    drafting: float = 0.004
    latencies: list[float] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Until the prompt is done."""
        held, asked = 0, dict.fromkeys(range(self.sessions), 0.0)
        while self.left:
            ready = [i for i, at in asked.items() if at <= self.clock.now]
            jobs = [Work(self.left, held, begun=held > 0), *(Work(WHOLE, 200) for _ in ready)]
            rows = self.schedule.share(jobs)
            assert rows[1:] == [WHOLE] * len(ready), "short work is served at once and whole"
            held, self.left = held + rows[0], self.left - rows[0]
            self.chunks.append(rows[0])
            mean = sum(j.held * n for j, n in zip(jobs, rows, strict=True)) / sum(rows)
            seconds = TABLE.estimate(sum(rows), mean)
            self.clock.now += seconds
            self.schedule.observe(jobs, rows, seconds)
            for i in ready:
                self.latencies.append(self.clock.now - asked[i])
                asked[i] = self.clock.now + self.drafting


@pytest.mark.parametrize("target", [None, 0.03, 0.1])
def test_short_sessions_wait_for_one_bounded_step_while_a_long_prompt_is_computed(target: float | None) -> None:
    """A verification that comes while a forward runs waits for that one and then for its own."""
    clock = Clock()
    day = Day(schedule(clock, target=target), clock, left=4096)
    day.run()
    bound = max(target or 0.05, LEAST_COST)
    assert max(day.latencies) <= 2 * bound * 1.001
    assert sum(day.chunks) == 4096
    assert min(day.chunks[:-1]) >= LEAST_CHUNK
    assert len(day.latencies) > 60


def test_what_the_sessions_would_wait_without_prices() -> None:
    """The budget alone, as a control: the test above can fail."""
    clock = Clock()
    day = Day(schedule(clock, target=10.0), clock, left=4096)
    day.run()
    assert max(day.latencies) > 0.3


def test_a_prompt_alone_fills_the_budget_and_gives_way_while_sessions_are_between_two_cycles() -> None:
    clock = Clock()
    timed = schedule(clock)
    prompt = Work(4000, 0)
    assert timed.share([prompt]) == [512]
    timed.share([Work(WHOLE, 100)])
    clock.now += COMPANY / 2
    assert timed.share([prompt]) == [81]  # 0.05 s by the table
    clock.now += COMPANY
    assert timed.share([prompt]) == [512]


def test_rows_behind_a_longer_context_cost_more_so_fewer_are_taken() -> None:
    clock = Clock()
    chunks = [schedule(clock).share([Work(4000, held), Work(1, 50)])[0] for held in (0, 1000, 4096)]
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[0] > 1.5 * chunks[-1] > LEAST_CHUNK


def test_a_prompt_goes_on_however_much_short_work_there_is() -> None:
    """Their own rows take longer than the target. The end of a prompt is a prompt still."""
    clock = Clock()
    timed = schedule(clock, budget=200)
    crowd = [Work(WHOLE, 1000)] * 15
    assert timed.share([Work(4000, 4000), *crowd]) == [LEAST_CHUNK, *[WHOLE] * 15]
    assert sum(timed.share([Work(200, 4000), Work(200, 4000), *crowd])[:2]) == LEAST_CHUNK
    tight = Schedule(200, 64, StepTimes(TABLE), 0.001, clock)
    assert tight.share([Work(50, 4000, begun=True), Work(1, 10)]) == [LEAST_CHUNK, 1]
    assert tight.share([Work(50, 0), Work(1, 10)]) == [50, 1]


def test_without_a_measurement_a_prompt_gets_what_triples_a_plain_forward_as_guessed() -> None:
    guess = Schedule(512, WHOLE)
    assert guess.step_target is None
    assert guess.share([Work(4000, 0), Work(1, 10)]) == [3 * (FLAT + 1) - FLAT - 1, 1]
    assert guess.budget == 512


def test_the_target_follows_the_pace_of_the_machine_and_a_given_one_does_not() -> None:
    clock = Clock()
    slow = [schedule(clock), schedule(clock, target=0.2)]
    for timed in slow:
        for _ in range(300):
            timed.observe([Work(1, 0)], [1], 1.0)
    assert schedule(clock).step_target == 0.05
    assert slow[0].step_target == pytest.approx(3.0, rel=0.01)
    assert slow[1].step_target == 0.2


def test_the_tuned_budget_is_where_more_rows_bring_little_and_holds_a_whole_verification() -> None:
    assert tuned_budget(TABLE, WHOLE) == 64
    assert tuned_budget(TABLE, 100) == 100


@given(
    st.lists(st.builds(Work, st.integers(1, 300), st.integers(0, 5000), st.booleans()), max_size=12),
    st.integers(WHOLE, 300),
    st.booleans(),
)
@settings(derandomize=True, deadline=None)
def test_a_schedule_keeps_to_budget_and_needs_and_serves_the_first(jobs: list[Work], budget: int, busy: bool) -> None:
    timed = schedule(Clock(), budget)
    if busy:
        timed.share([Work(1, 0)])
    rows = timed.share(jobs)
    assert sum(rows) <= budget
    assert all(0 <= n <= job.rows for n, job in zip(rows, jobs, strict=True))
    assert not jobs or rows[0] > 0


def test_the_engine_cuts_a_prompt_by_price_and_all_outputs_are_as_alone(make_engine: MakeEngine) -> None:
    rows: list[int] = []
    timed = Schedule(64, 17, StepTimes(TABLE), 0.001, Clock())  # nothing fits this target: the least chunk remains
    engine = make_engine(schedule=timed, report=lambda report: rows.append(report.rows), clock=lambda: 0.0)
    turns = [Turn(prompt(150), 4, session_id="long"), *(Turn(prompt(3, i), 12, session_id=str(i)) for i in range(2))]
    run(engine, turns)
    assert [t.output for t in turns] == [generate(make_engine(), t.prompt, t.length) for t in turns]
    assert max(rows) == LEAST_CHUNK + 2 * 3
    assert [len(t.results) for t in turns] == [4, 12, 12], "one step each, whatever the prompt takes"
    alone: list[int] = []
    engine = make_engine(
        schedule=Schedule(64, 17, StepTimes(TABLE), 0.001, Clock()), report=lambda report: alone.append(report.rows)
    )
    run(engine, [Turn(prompt(150), 2)])
    assert alone[:3] == [64, 64, 22]
