"""How long blocks take to fetch, by what fetches took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FIRST = 1 / 400e6  # seconds per byte while nothing was fetched yet
LEARN = 0.3  # weight of a fetch in the running mean
HALF_LIFE = 30.0  # seconds in which half of what was learned is forgotten: a store that was slow gets another chance


class FetchPace:
    """Seconds of a block of `block_bytes`, trips and checks included."""

    def __init__(self, block_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first = self._learned = FIRST * block_bytes
        self._at = clock()

    def seconds(self, blocks: int) -> float:
        """Expected, of a fetch of so many."""
        return blocks * self._now()

    def observe(self, blocks: int, seconds: float) -> None:
        self._learned = self._now() + LEARN * (seconds / blocks - self._now())
        self._at = self._clock()

    def _now(self) -> float:
        kept = math.pow(0.5, (self._clock() - self._at) / HALF_LIFE)
        return self._first + (self._learned - self._first) * kept
