"""What was cancelled in a task group is gone at once, not when garbage is collected."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from specdec.edge.tasks import TaskGroup


class Held:
    """What a coroutine has in hand."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def waits(held: Held, group: type[asyncio.TaskGroup], ready: asyncio.Event) -> None:
    async with group() as tasks:
        tasks.create_task(asyncio.Event().wait())
        ready.set()
        await asyncio.Event().wait()


async def left_after_a_cancel(group: type[asyncio.TaskGroup]) -> bool:
    """Whether what the coroutine held is still there. A group around it, as a handler has one around its choices."""
    held, ready = Held(), asyncio.Event()
    there = weakref.ref(held)

    async def outer(held: Held) -> None:
        async with group() as tasks:
            tasks.create_task(waits(held, group, ready))

    task = asyncio.create_task(outer(held))
    del held
    await ready.wait()
    task.cancel()
    await asyncio.wait([task])
    del task
    await asyncio.sleep(0)
    return there() is not None


@pytest.mark.usefixtures("uncollected")
async def test_a_cancelled_group_keeps_nothing() -> None:
    assert not await left_after_a_cancel(TaskGroup)


@pytest.mark.usefixtures("uncollected")
async def test_it_still_raises_what_asyncios_raises() -> None:
    async def fails() -> None:
        raise LookupError("first")

    with pytest.raises(ExceptionGroup) as failed:
        async with TaskGroup() as tasks:
            tasks.create_task(fails())
            await asyncio.Event().wait()
    assert [type(error) for error in failed.value.exceptions] == [LookupError]
