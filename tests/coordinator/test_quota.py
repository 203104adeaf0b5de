from __future__ import annotations

from contextlib import ExitStack

import pytest

from coordinator.keys import ANYONE, Caller
from coordinator.quota import Quota
from specdec.core.errors import ResourceExhausted


def test_a_caller_has_so_many_calls_at_a_time_and_others_do_not_count() -> None:
    quota, caller = Quota(), Caller("one", max_streams=2)
    with ExitStack() as running:
        for each in (caller, caller, Caller("two", max_streams=1), ANYONE):
            running.enter_context(quota.stream(each))
        with pytest.raises(ResourceExhausted, match="max_streams"), quota.stream(caller):
            pass
    with quota.stream(caller):
        pass


def test_tokens_are_spent_and_come_back_by_the_minute() -> None:
    now = 0.0
    quota, caller = Quota(lambda: now), Caller("one", tokens_per_minute=600)
    with quota.stream(caller) as used:
        used(900)  # an answer is never cut for it
    with pytest.raises(ResourceExhausted) as refused, quota.stream(caller):
        pass
    assert refused.value.retry_after == pytest.approx(30.0)
    now += 29.0
    with pytest.raises(ResourceExhausted), quota.stream(caller):
        pass
    now += 2.0
    with quota.stream(caller):
        pass
    now += 3600.0
    with quota.stream(caller) as used:
        used(599)
    with quota.stream(caller) as used:
        used(2)
    with pytest.raises(ResourceExhausted), quota.stream(caller):
        pass


def test_a_call_that_fails_gives_its_place_back() -> None:
    quota, caller = Quota(), Caller("one", max_streams=1)
    for _ in range(3):
        with pytest.raises(ValueError), quota.stream(caller):
            raise ValueError
