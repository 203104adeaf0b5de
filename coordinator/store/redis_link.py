"""One script on Redis, within one deadline: bounded connections, retries, and no command that hangs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import (
    ClusterError,
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from coordinator.store import outcomes
from coordinator.store.redis_scripts import Script
from specdec.core.errors import Unavailable
from specdec.edge.redis_clients import RedisClient

# What a failover, a restart, a cut network or a server that will not have us shows for a while. Anything else is a bug,
# raised as it is.
_TRANSIENT = (
    ConnectionError,
    RedisTimeoutError,
    ReadOnlyError,
    NoPermissionError,
    ClusterError,
    RedisClusterException,
    TryAgainError,
    OSError,
)
_TRANSIENT_CODES = ("NOREPLICAS ", "MISCONF ", "BUSY ", "DENIED ")
_FIRST_BACKOFF_S = 0.005
_LAST_BACKOFF_S = 0.25


def backoff(attempt: int, deadline: float, u: float) -> float:
    """Seconds to wait after failed attempt 0, 1, ...: doubling, at most an eighth of the deadline, half of it
    jitter by u in [0, 1)."""
    longest = min(_LAST_BACKOFF_S, deadline / 8)
    return min(_FIRST_BACKOFF_S * 2.0 ** min(attempt, 30), longest) * (0.5 + u / 2)


class RedisLink:
    """deadline: seconds for a whole call, waiting for a connection and retries included."""

    def __init__(self, redis: RedisClient, deadline: float) -> None:
        self._redis = redis
        self._deadline = deadline
        self._free = asyncio.Semaphore(redis.max_connections)
        self._jitter = random.Random()
        self.in_use = 0

    async def run(self, script: Script, keys: tuple[str, ...], args: tuple[str | bytes | int, ...]) -> Any:
        """The script's reply. Raises Unavailable (STORE_UNAVAILABLE) and ResourceExhausted (STORE_FULL)."""
        return await self._persist(lambda: self._evaluate(script, keys, args))

    async def everywhere(self, *command: str) -> list[Any]:
        """The replies of the server, of every primary in a cluster."""
        client = self._redis.client
        if isinstance(client, Redis):
            return [await self._persist(partial(client.execute_command, *command))]

        async def ask_all() -> list[Any]:
            await client.initialize()
            nodes = client.get_primaries()
            return [await client.execute_command(*command, target_nodes=node) for node in nodes]

        replies: list[Any] = await self._persist(ask_all)
        return replies

    async def close(self) -> None:
        await self._redis.close()

    async def _persist(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        failure: Exception | None = None
        cancels = _cancels()
        try:
            async with asyncio.timeout(self._deadline):
                for number in count():
                    try:
                        reply = await self._attempt(attempt)
                        break
                    except Exception as error:
                        failure = _transient(error)
                    _pass_on_cancel(cancels)
                    await asyncio.sleep(backoff(number, self._deadline, self._jitter.random()))
        except TimeoutError as timeout:
            raise self._unavailable(failure or timeout) from (failure or timeout)
        _pass_on_cancel(cancels)
        return reply

    async def _attempt(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        async with self._free:
            self.in_use += 1
            try:
                return await attempt()
            finally:
                self.in_use -= 1

    async def _evaluate(self, script: Script, keys: tuple[str, ...], args: tuple[str | bytes | int, ...]) -> Any:
        try:
            return await self._send(script, "EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._send(script, "EVAL", script.text, len(keys), *keys, *args)

    async def _send(self, script: Script, *command: str | bytes | int) -> Any:
        client, replicas = self._redis.client, self._redis.wait_replicas
        if not (replicas and script.writes):
            return await client.execute_command(*command)
        assert isinstance(client, Redis), "WAIT counts the writes of its own connection: not for a cluster client"
        async with client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*command)
            pipe.execute_command("WAIT", replicas, int(self._deadline * 250))
            reply, reached = await pipe.execute(raise_on_error=False)
        for outcome in (reply, reached):
            if isinstance(outcome, Exception):
                raise outcome
        if reached < replicas:
            raise ConnectionError(f"the write reached {reached} of {replicas} replicas")
        return reply

    def _unavailable(self, cause: Exception) -> Unavailable:
        return Unavailable(
            f"the session store did not serve within {self._deadline:g} s ({type(cause).__name__})",
            reason="STORE_UNAVAILABLE",
            retry_after=self._deadline,
        )


def _cancels() -> int:
    task = asyncio.current_task()
    assert task is not None, "the store runs in tasks"
    return task.cancelling()


def _pass_on_cancel(before: int) -> None:
    """The client library swallows a cancel that meets the end of a write (asyncio.wait_for before 3.12)."""
    if _cancels() > before:
        raise asyncio.CancelledError


def _transient(error: Exception) -> Exception:
    """The error, if trying again may help; raises otherwise."""
    if isinstance(error, OutOfMemoryError):
        raise outcomes.full(str(error)) from error
    if isinstance(error, _TRANSIENT) or (isinstance(error, ResponseError) and str(error).startswith(_TRANSIENT_CODES)):
        return error
    raise error
