"""One replica as its coordinator sees it: set aside, on trial, trusted again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.replica import FIRST_PAUSE, LONGEST_PAUSE, Replica, State


@pytest.fixture
async def sound() -> AsyncIterator[Replica]:
    replica = Replica("127.0.0.1:1", "target")
    replica.state = State.READY
    yield replica
    await replica.close()


async def test_one_death_counts_once_and_each_is_set_aside_longer(sound: Replica) -> None:
    now, pauses = 0.0, []
    for _ in range(9):
        pause = sound.quarantine(now)
        assert pause is not None and sound.quarantine(now + pause / 2) is None, "every session sees the same death"
        assert not sound.usable(now + 0.99 * pause) and sound.usable(now + pause)
        pauses.append(pause)
        now += pause
    assert pauses == [min(FIRST_PAUSE * 2**i, LONGEST_PAUSE) for i in range(9)]


async def test_after_its_quarantine_one_session_tries_it_and_the_others_wait(sound: Replica) -> None:
    """A half-open breaker: a replica that fails again fails one session, not all of them."""
    pause = sound.quarantine(0.0)
    assert pause is not None
    sound.taken(pause)
    assert not sound.usable(pause)
    assert sound.usable(pause + 2 * pause), "a session that never came back does not keep it for ever"
    sound.forgive()
    assert sound.usable(pause)
    sound.taken(pause)
    assert sound.usable(pause), "once a reply was sound, everyone may come"


async def test_a_trial_that_fails_sets_it_aside_again(sound: Replica) -> None:
    first = sound.quarantine(0.0)
    assert first is not None
    sound.taken(first)
    second = sound.quarantine(first)
    assert second == 2 * first and not sound.usable(first + 0.9 * second)


async def test_a_replica_that_never_failed_takes_everyone(sound: Replica) -> None:
    for _ in range(3):
        assert sound.usable(0.0)
        sound.taken(0.0)
