"""Health from progress: a replica whose model no longer computes says so, though its process lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from specdec.core.errors import ResourceExhausted, Unavailable
from specdec.edge.server import GrpcServer
from target_service.engine import Engine
from target_service.service import Batcher

FAILURES = 3  # forwards that raised in a row, until the model counts as broken

_log = logging.getLogger(__name__)


@asynccontextmanager
async def watch_health(
    server: GrpcServer,
    engine: Engine,
    batcher: Batcher,
    *,
    draining: Callable[[], bool],
    stuck_after: float,
    interval: float = 1.0,
) -> AsyncIterator[None]:
    """Inside, health is SERVING while forwards finish, and not while one has been running for `stuck_after` seconds,
    after FAILURES that raised in a row, or once draining. A broken model is probed, and serves again when it can. Not
    live is whose forward runs that long, or whose model stays broken that long: a device that is lost to a process
    comes back to the next one only."""
    clock = asyncio.get_running_loop().time

    async def watch() -> None:
        well = clock()
        while True:
            broken = engine.failures_in_a_row >= FAILURES
            well = well if broken else clock()
            moving = batcher.healthy(stuck_after)
            await server.set_serving(
                moving and not broken and not draining(), live=moving and clock() - well < stuck_after
            )
            if broken:
                await _probe(engine, batcher, stuck_after)
            await asyncio.sleep(interval)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch(), name="health")
        try:
            yield
        finally:
            task.cancel()


async def _probe(engine: Engine, batcher: Batcher, patience: float) -> None:
    """patience: seconds after which a probe that hangs is left to itself, so that health goes on telling."""
    try:
        async with asyncio.timeout(patience):
            await batcher.call(engine.probe)
    except (ResourceExhausted, Unavailable) as error:
        _log.info("not probed: %s", error)
    except Exception as error:  # whatever a model may raise: it is what we came to see
        _log.warning("the model still fails: %r", error)
