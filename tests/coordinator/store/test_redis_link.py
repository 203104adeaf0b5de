from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from coordinator.store.redis_link import RedisLink, backoff
from coordinator.store.redis_scripts import LOAD
from specdec.core.errors import Unavailable
from specdec.edge.redis_clients import RedisClient
from tests.coordinator.store.kinds import HANG_GUARD


class Scripted:
    """A client whose every command is the next of `steps`."""

    def __init__(self, *steps: Callable[[], Awaitable[Any]]) -> None:
        self.steps = list(steps)

    async def execute_command(self, *command: object) -> Any:
        return await (self.steps.pop(0) if len(self.steps) > 1 else self.steps[0])()


def link(*steps: Callable[[], Awaitable[Any]], deadline: float = 5.0) -> RedisLink:
    async def close() -> None:
        return

    client = RedisClient(cast(Any, Scripted(*steps)), close, max_connections=1, wait_replicas=0)
    return RedisLink(client, deadline)


async def answer() -> str:
    return "answer"


async def fail() -> None:
    raise ConnectionError("gone")


async def hang() -> None:
    await asyncio.Event().wait()


async def swallow_a_cancel() -> str:
    """What the client library's wait_for does to a cancel that meets the end of a write."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "late"
    raise AssertionError


def test_backoff_doubles_with_jitter_up_to_a_share_of_the_deadline() -> None:
    assert backoff(0, 8.0, 0.0) == 0.0025 and backoff(1, 8.0, 0.0) == 0.005
    assert backoff(0, 8.0, 0.5) == 0.00375
    assert backoff(60, 8.0, 0.0) == 0.125 and backoff(60, 0.8, 0.0) == 0.05


async def test_no_more_commands_run_than_there_are_connections() -> None:
    running, most = 0, 0

    async def count_in() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    tested = link(count_in)
    await asyncio.gather(*(tested.run(LOAD, ("k",), ()) for _ in range(20)))
    assert most == 1


async def test_a_transient_failure_is_tried_again() -> None:
    tested = link(fail, fail, answer)
    assert await tested.run(LOAD, ("k",), ()) == "answer" and tested.in_use == 0


async def test_failures_to_the_end_of_the_deadline_are_unavailable_with_their_cause() -> None:
    async with asyncio.timeout(HANG_GUARD * 0.1):
        with pytest.raises(Unavailable) as caught:
            await link(fail, deadline=0.1).run(LOAD, ("k",), ())
    assert caught.value.reason == "STORE_UNAVAILABLE" and isinstance(caught.value.__cause__, ConnectionError)


@pytest.mark.parametrize(
    "refusal",
    [ResponseError("DENIED Redis is running in protected mode"), NoPermissionError("this user has no permissions")],
    ids=["protected", "not allowed"],
)
async def test_a_server_that_will_not_have_us_is_unavailable_and_no_bug_of_ours(refusal: Exception) -> None:
    """Health then says that the store is not there, instead of ending."""

    async def refuse() -> None:
        raise refusal

    with pytest.raises(Unavailable):
        await link(refuse, deadline=0.05).run(LOAD, ("k",), ())


async def test_a_hang_ends_at_the_deadline() -> None:
    tested = link(hang, deadline=0.05)
    async with asyncio.timeout(HANG_GUARD * 0.05):
        with pytest.raises(Unavailable):
            await tested.run(LOAD, ("k",), ())
    assert tested.in_use == 0


async def test_a_reply_that_no_fault_explains_is_raised_as_the_bug_it_is() -> None:
    async def wrong_type() -> None:
        raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")

    with pytest.raises(ResponseError):
        await link(wrong_type).run(LOAD, ("k",), ())


@pytest.mark.parametrize("then", [answer, fail], ids=["answers", "fails"])
async def test_a_cancel_that_the_client_library_swallows_still_cancels(
    then: Callable[[], Awaitable[Any]],
) -> None:
    async def swallow() -> Any:
        await swallow_a_cancel()
        return await then()

    call = asyncio.create_task(link(swallow).run(LOAD, ("k",), ()))
    for _ in range(5):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_swallowed_deadline_is_not_taken_for_a_cancel() -> None:
    assert await link(swallow_a_cancel, deadline=0.05).run(LOAD, ("k",), ()) == "late"
