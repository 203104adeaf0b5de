"""How long a forward waits for sessions that are about to be back: what makes the sum of all waits smallest."""

from __future__ import annotations

import math

import pytest

from specdec.core.step_time import StepTimeTable
from target_service.company import FIRST, LATE, SOON, Company

STEP = 0.02
IDLE, RUNNING = 0.0, math.inf
FLAT = StepTimeTable.of([1, 64], [0], [[STEP], [1.2 * STEP]])  # more rows cost next to nothing
LINEAR = StepTimeTable.of([1, 64], [0], [[STEP], [64 * STEP]])  # nothing is saved by sharing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def company(clock: Clock, away: float, sessions: int) -> Company:
    """Sessions that have all been answered just now, and usually stay away for `away` seconds."""
    one = Company(clock)
    for key in range(sessions):
        one.came(key, 1, IDLE)
        one.left(key)
    clock.now += away
    for key in range(sessions):
        one.came(key, 1, IDLE)
        one.left(key)
    return one


def test_it_waits_for_those_who_are_soon_back() -> None:
    one = company(Clock(), 0.003, 4)
    assert one.patience([1] * 4, FLAT, 0, IDLE) == pytest.approx(0.003)


def test_it_does_not_wait_where_sharing_saves_nothing() -> None:
    assert company(Clock(), 0.003, 4).patience([1] * 4, LINEAR, 0, IDLE) == 0


def test_many_do_not_wait_for_one_and_one_waits_for_many() -> None:
    assert company(Clock(), 0.003, 1).patience([1] * 16, FLAT, 0, IDLE) == 0
    assert company(Clock(), 0.003, 16).patience([1], FLAT, 0, IDLE) == pytest.approx(0.003)


def test_it_never_waits_longer_than_a_forward_takes() -> None:
    assert company(Clock(), 1.1 * STEP, 16).patience([1], FLAT, 0, IDLE) == 0


def test_who_is_late_is_waited_for_a_little_at_a_time_and_too_late_only_after_being_back() -> None:
    clock = Clock()
    one = company(clock, 0.003, 4)
    clock.now += 0.004
    assert one.patience([1], FLAT, 0, IDLE) == pytest.approx(SOON * 0.003)
    clock.now += 0.0015
    assert one.patience([1], FLAT, 0, IDLE) == pytest.approx((LATE - 1) * 0.003 - 0.0025)
    clock.now += 0.0015
    assert one.patience([1], FLAT, 0, IDLE) == 0
    one.came(0, 1, IDLE)
    one.left(0)
    assert one.patience([1], FLAT, 0, IDLE) == pytest.approx(LATE * 0.003)


def test_of_a_new_session_a_first_guess_is_made_and_doubled_where_it_is_wrong() -> None:
    clock = Clock()
    one = Company(clock)
    one.came(0, 1, IDLE)
    one.left(0)
    assert one.patience([1], FLAT, 0, IDLE) == pytest.approx(FIRST * STEP)
    clock.now += LATE * FIRST * STEP
    assert one.patience([1], FLAT, 0, IDLE) == 0
    one.came(0, 1, IDLE)
    one.left(0)
    assert one.patience([1], FLAT, 0, IDLE) == pytest.approx(0)
    assert one.patience([1, 1], FLAT, 0, IDLE) == 0


def test_a_few_that_are_over_their_time_do_not_look_farther_away_the_later_they_are() -> None:
    """Among many absences differ. Three of thirty that are a tenth late are about to come; to think of them as far away
    as they can be would leave them behind, and the next forward would read the weights for them alone."""
    clock = Clock()
    one = company(clock, 0.015, 30)
    for key in range(27):
        one.came(key, 1, IDLE)
    clock.now += 0.0165
    table = StepTimeTable.of([1, 64], [0], [[0.12], [0.2]])
    assert one.patience([1] * 27, table, 0, IDLE) == pytest.approx(SOON * 0.015)


@pytest.mark.parametrize("what", ["nobody", "served", "gone"])
def test_nobody_waits_for_sessions_that_cannot_be_expected(what: str) -> None:
    one = company(Clock(), 0.003, 4)
    for key in range(4):
        if what == "served":
            one.came(key, 1, IDLE)
        else:
            one.gone(key)
            one.left(key)
    assert one.patience([1], FLAT, 0, IDLE) == 0


@pytest.mark.parametrize("away", [0.001, 0.009])
def test_an_absence_with_a_forward_in_it_can_only_have_been_shorter(away: float) -> None:
    clock = Clock()
    one = company(clock, 0.003, 4)
    stepped = clock.now + away / 2
    clock.now += away
    for key in range(4):
        one.came(key, 1, stepped)
        one.left(key)
    assert one.patience([1], FLAT, 0, IDLE) == pytest.approx(min(away, 0.003))


def test_who_is_absent_while_a_forward_runs_is_not_late() -> None:
    clock = Clock()
    one = company(clock, 0.003, 4)
    stepped = clock.now + STEP
    clock.now += 2 * STEP
    assert one.patience([1], FLAT, 0, stepped) == 0
    for key in range(4):
        one.came(key, 1, stepped)
        one.left(key)
    assert one.patience([1], FLAT, 0, stepped) == pytest.approx(0.003)


def test_an_absence_is_learned_slowly() -> None:
    clock = Clock()
    one = company(clock, 0.002, 8)
    clock.now += 0.012
    for key in range(8):
        one.came(key, 1, IDLE)
        one.left(key)
    assert one.patience([1], FLAT, 0, IDLE) == pytest.approx(0.002 + 0.2 * 0.010)


def requests_a_second(patient: bool, sessions: int = 8, away: float = 0.003, steps: int = 200) -> float:
    """Of sessions that come back after `away`, two groups at first, to an engine that waits for them or does not."""
    clock = Clock()
    one = Company(clock)
    coming = {key: clock.now + 0.5 * STEP * (key % 2) for key in range(sessions)}
    here: list[int] = []

    def pass_until(end: float, stepped: float = IDLE) -> None:
        for key in sorted(coming, key=lambda key: coming[key]):
            if coming[key] <= end:
                clock.now = coming.pop(key)
                one.came(key, 1, stepped)
                here.append(key)
        clock.now = end

    served, begun = 0, clock.now
    for _ in range(steps):
        pass_until(clock.now if here else min(coming.values()))
        while patient and (wait := one.patience([1] * len(here), FLAT, 0, IDLE)):
            pass_until(min([clock.now + wait, *coming.values()]))
        batch = list(here)
        here.clear()
        pass_until(clock.now + FLAT.estimate(len(batch), 0), RUNNING)
        served += len(batch)
        for key in batch:
            one.left(key)
            coming[key] = clock.now + away
    return served / (clock.now - begun)


def test_sessions_that_take_turns_come_to_share_a_forward() -> None:
    assert requests_a_second(patient=True) > 1.5 * requests_a_second(patient=False)
