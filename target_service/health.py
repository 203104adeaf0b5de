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
    after FAILURES that raised in a row, or once draining. A broken model is probed, and serves again when it can."""

    async def watch() -> None:
        while True:
            broken = engine.failures_in_a_row >= FAILURES
            healthy = batcher.healthy(stuck_after) and not broken
            await server.set_serving(healthy and not draining())
            if broken:
                await _probe(engine, batcher)
            await asyncio.sleep(interval)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch(), name="health")
        try:
            yield
        finally:
            task.cancel()


async def _probe(engine: Engine, batcher: Batcher) -> None:
    try:
        await batcher.call(engine.probe)
    except (ResourceExhausted, Unavailable) as error:
        _log.info("not probed: %s", error)
    except Exception as error:  # whatever a model may raise: it is what we came to see
        _log.warning("the model still fails: %r", error)
