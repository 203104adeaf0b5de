"""Cases worked out by hand from the documented rules of the horizontal autoscaler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.autoscale.hpa import (
    DEFAULT_DOWN,
    DEFAULT_UP,
    Autoscaler,
    Behaviour,
    Policy,
    Rules,
    TargetKind,
    wanted,
    wanted_by_pods,
)

AT_ONCE = Behaviour(down=replace(DEFAULT_DOWN, window=0.0))


@pytest.mark.parametrize(
    ("kind", "target", "value", "current", "ready", "replicas"),
    [
        ("Value", 100, 200, 3, 3, 6),  # twice the target: twice the pods
        ("Value", 100, 50, 4, 4, 2),
        ("Value", 100, 110, 4, 4, 4),  # within a tenth
        ("Value", 100, 111, 4, 4, 5),
        ("Value", 100, 90, 4, 4, 4),
        ("Value", 100, 89, 10, 10, 9),
        ("Value", 100, 300, 4, 2, 6),  # of four pods two still start: the two that work must become three times as many
        ("AverageValue", 10, 75, 4, 4, 8),  # a sum, shared
        ("AverageValue", 10, 43, 4, 2, 4),  # 10.75 each, within a tenth; who is ready does not matter
        ("AverageValue", 10, 45, 4, 4, 5),
        ("AverageValue", 0.1, 0.3, 1, 1, 3),  # not 4 by a rounding of 3.0000000000000004
    ],
)
def test_one_metric_asks_for_so_many_pods(
    kind: TargetKind, target: float, value: float, current: int, ready: int, replicas: int
) -> None:
    assert wanted(kind, target, value, current, ready) == replicas


@pytest.mark.parametrize(
    ("values", "missing", "replicas"),
    [
        ([20, 20], 0, 4),
        ([20, 20], 1, 4),  # 40 over three pods: 4/3 of the target, three pods counted
        ([20, 20], 2, 4),  # 40 over four pods is the target
        ([12, 12], 2, 4),  # idle newcomers would turn up into down: nothing
        ([2, 2], 0, 1),
        ([2, 2], 2, 3),  # newcomers on target: 24 of 40
        ([9.5, 9.5], 0, 2),
    ],
)
def test_pods_without_a_value_dampen_either_direction(values: list[float], missing: int, replicas: int) -> None:
    assert wanted_by_pods(10, values, missing) == replicas


def test_the_greatest_proposal_counts() -> None:
    assert Autoscaler(1, 10, AT_ONCE).sync(0, 4, [2, 6, 5]) == 6


@pytest.mark.parametrize(("proposals", "replicas"), [([2, None], 4), ([6, None], 6), ([None, None], 4), ([], 4)])
def test_a_metric_that_cannot_be_read_forbids_scaling_down(proposals: list[int | None], replicas: int) -> None:
    assert Autoscaler(1, 10, AT_ONCE).sync(0, 4, proposals) == replicas


@pytest.mark.parametrize(("current", "proposal", "replicas"), [(4, 40, 10), (4, 0, 2), (1, 1, 2), (12, 12, 10)])
def test_replicas_keep_within_their_bounds(current: int, proposal: int, replicas: int) -> None:
    free = Behaviour(up=Rules((Policy("Pods", 100, 15),)), down=replace(DEFAULT_DOWN, window=0.0))
    assert Autoscaler(2, 10, free).sync(0, current, [proposal]) == replicas


@pytest.mark.parametrize(("current", "replicas"), [(1, 5), (3, 7), (4, 8), (10, 20)])
def test_by_default_four_pods_or_as_many_again_come_in_fifteen_seconds(current: int, replicas: int) -> None:
    scaler = Autoscaler(1, 100, Behaviour())
    assert scaler.sync(0, current, [100]) == replicas
    assert scaler.sync(14, replicas, [100]) == replicas, "the period is not over"
    assert scaler.sync(15, replicas, [100]) == max(2 * replicas, replicas + 4)


def test_the_lesser_policy_counts_where_min_is_selected() -> None:
    slow = Behaviour(up=Rules(DEFAULT_UP.policies, select="Min"))
    assert Autoscaler(1, 100, slow).sync(0, 2, [100]) == 4
    careful = Behaviour(down=Rules((Policy("Pods", 5, 60), Policy("Percent", 10, 60)), select="Min"))
    assert Autoscaler(1, 100, careful).sync(0, 80, [1]) == 75
    assert Autoscaler(1, 100, careful).sync(0, 20, [1]) == 18


@pytest.mark.parametrize(("current", "first", "second"), [(80, 72, 64), (10, 9, 8)])
def test_ten_percent_a_minute_are_of_the_pods_at_the_minutes_start(current: int, first: int, second: int) -> None:
    scaler = Autoscaler(1, 100, Behaviour(down=Rules((Policy("Percent", 10, 60),))))
    assert scaler.sync(0, current, [1]) == first
    assert scaler.sync(30, first, [1]) == first
    assert scaler.sync(60, first, [1]) == second


def test_pods_that_went_within_the_period_may_come_back() -> None:
    scaler = Autoscaler(1, 100, Behaviour(up=Rules((Policy("Pods", 1, 60),)), down=Rules((Policy("Pods", 3, 60),))))
    assert scaler.sync(0, 10, [5]) == 7
    assert scaler.sync(15, 7, [20]) == 11, "one more than the ten at the period's start"


def test_a_disabled_direction_never_moves() -> None:
    fixed = Behaviour(down=Rules((Policy("Percent", 100, 15),), select="Disabled"))
    assert Autoscaler(1, 100, fixed).sync(0, 10, [1]) == 10


def test_down_waits_until_nobody_recommended_more_within_the_window() -> None:
    scaler = Autoscaler(1, 100, Behaviour())
    assert scaler.sync(0, 2, [8]) == 6
    assert scaler.sync(15, 6, [8]) == 8
    found = [scaler.sync(15.0 * i, 8, [3 if i % 2 else 2]) for i in range(2, 21)]
    assert found == [8] * 19, "300 seconds after the last 8"
    assert scaler.sync(315, 8, [2]) == 3, "the greatest of the window, not the latest"


def test_up_waits_for_the_least_of_its_window() -> None:
    scaler = Autoscaler(1, 100, Behaviour(up=replace(DEFAULT_UP, window=60.0)))
    found = [scaler.sync(15.0 * i, 4, [value]) for i, value in enumerate([4, 9, 9, 9])]
    assert found == [4, 4, 4, 4]
    assert scaler.sync(60, 4, [7]) == 7
