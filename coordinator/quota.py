"""What one caller may have at a time and by the minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coordinator.keys import Caller
from specdec.core.errors import ResourceExhausted

MINUTE = 60.0


@dataclass(slots=True)
class _Account:
    """tokens: left, refilled up to a minute's worth; below 0 where answers were longer than what was left."""

    streams: int = 0
    tokens: float = 0.0
    at: float = 0.0


class Quota:
    """Of one coordinator: several of them behind one name each grant the whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[Callable[[int], None]]:
        """Around one call; what it gives is told of the tokens used. A call begins where any token is left and is never
        cut for want of more. Raises ResourceExhausted, with the time after which to come again."""
        account = self._account(caller)
        if caller.max_streams is not None and account.streams >= caller.max_streams:
            raise ResourceExhausted(f"{caller.name}: {account.streams} calls are running, its max_streams")
        if caller.tokens_per_minute is not None and account.tokens <= 0:
            wait = max(1.0, -account.tokens / caller.tokens_per_minute * MINUTE)
            raise ResourceExhausted(f"{caller.name}: its tokens_per_minute are used up", retry_after=wait)
        account.streams += 1
        try:
            yield lambda tokens: self._use(caller, tokens)
        finally:
            account.streams -= 1

    def _account(self, caller: Caller) -> _Account:
        now, most = self._clock(), float(caller.tokens_per_minute or 0)
        account = self._accounts.setdefault(caller.name, _Account(tokens=most, at=now))
        account.tokens = min(most, account.tokens + most * (now - account.at) / MINUTE)
        account.at = now
        return account

    def _use(self, caller: Caller, tokens: int) -> None:
        self._account(caller).tokens -= tokens
