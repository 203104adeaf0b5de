"""Health from progress: a replica whose forward never ends says so, though its process lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from draft_service.lane import Lane
from specdec.edge.server import GrpcServer


@asynccontextmanager
async def watch_health(
    server: GrpcServer,
    lanes: Collection[Lane],
    *,
    draining: Callable[[], bool],
    stuck_after: float,
    interval: float = 1.0,
) -> AsyncIterator[None]:
    """Inside, health is SERVING, but not while a step of any lane has been running for `stuck_after` seconds: then the
    process is not live either. Nor is it SERVING once draining. interval: seconds between two looks."""

    async def watch() -> None:
        while True:
            healthy = all(lane.healthy(stuck_after) for lane in lanes)
            await server.set_serving(healthy and not draining(), live=healthy)
            await asyncio.sleep(interval)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch(), name="health")
        try:
            yield
        finally:
            task.cancel()
