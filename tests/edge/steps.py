"""Jobs, and a step whose every run the test lets go by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specdec.edge.batcher import MicroBatcher


@dataclass(eq=False)
class Job:
    n: int


Finish = Callable[[list[Job]], list[tuple[Job, Any]]]


def square(jobs: list[Job]) -> list[tuple[Job, Any]]:
    return [(job, job.n**2) for job in jobs]


@dataclass
class GatedStep:
    """Records every batch; each step waits until the test lets it go."""

    finish: Finish = square
    batches: list[list[int]] = field(default_factory=list)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __call__(self, jobs: list[Job]) -> list[tuple[Job, Any]]:
        self.batches.append([job.n for job in jobs])
        self.entered.release()
        assert self.gate.acquire(timeout=30)
        return self.finish(jobs)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=30)


def submit(batcher: MicroBatcher[Job, Any], *numbers: int) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(batcher.submit(Job(n))) for n in numbers]


async def settled(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
