"""Health that tells the truth: not ready without a verifier or without the store, ready but slower without drafters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.pool import Pool
from coordinator.store.protocol import SessionStore
from specdec.core.errors import Unavailable
from specdec.edge.server import GrpcServer
from specdec.edge.telemetry import CoordinatorMetrics

PERIOD = 0.5  # seconds between two looks

log = logging.getLogger(__name__)


@asynccontextmanager
async def watch_readiness(
    server: GrpcServer, targets: Pool, store: SessionStore, metrics: CoordinatorMetrics
) -> AsyncIterator[None]:
    """Sets the server's health by its verifiers and its store for as long as the block lasts."""
    task = asyncio.create_task(_watch(server, targets, store, metrics), name="readiness")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(server: GrpcServer, targets: Pool, store: SessionStore, metrics: CoordinatorMetrics) -> None:
    before: str | None = "never looked"
    while True:
        reason = await _not_ready(targets, store)
        if reason != before:
            log.info("ready" if reason is None else f"not ready: {reason}")
            await server.set_serving(reason is None)
            metrics.ready.set(int(reason is None))
        before = reason
        await asyncio.sleep(PERIOD)


async def _not_ready(targets: Pool, store: SessionStore) -> str | None:
    if not targets.ready():
        return "no verifier is ready"
    try:
        await store.ping()
    except Unavailable as error:
        return str(error)
    return None
