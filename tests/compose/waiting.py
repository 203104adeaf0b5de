"""Waiting for containers: they have no event to offer, only a state to look at."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE = 0.25  # seconds between two looks


def until(condition: Callable[[], object], what: str, within: float) -> float:
    """Seconds that it took. Raises TimeoutError naming `what`."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > within:
            raise TimeoutError(f"{what} did not come within {within:.0f} s")
        time.sleep(PAUSE)
    return time.monotonic() - begun
