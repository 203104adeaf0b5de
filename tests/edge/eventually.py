"""Waiting for another process: it has no event to offer, only a state to look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
