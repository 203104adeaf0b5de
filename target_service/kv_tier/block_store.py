"""Where blocks are kept: one key each, every one with a time to live, no command that spans two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.asyncio import Redis

from specdec.core.errors import ConfigError
from specdec.edge.redis_clients import CLIENTS, RedisClient
from specdec.edge.store_address import parse_address

CLAIM = 5.0  # seconds for which whoever has begun to store a block keeps the others from it
_CLAIMED = b""


class BlockStore(Protocol):
    """Each call is one trip, bounded in time, and raises whatever the store raises: its caller goes on without."""

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        """None: it is not there, or not yet. What is read lives on for its whole time."""

    async def put(self, name: str, value: memoryview) -> bool:
        """False: it is there, or someone else is storing it."""

    async def refresh(self, names: Sequence[str]) -> list[bool]:
        """Lets them live on for their whole time; False: it is not there."""

    async def delete(self, name: str) -> None: ...

    async def used_bytes(self) -> int:
        """Memory that the store has in use, whatever for."""

    async def close(self) -> None: ...


class RedisBlocks:
    """ttl: seconds."""

    def __init__(self, redis: RedisClient, ttl: float) -> None:
        self._redis = redis
        self._client: Any = redis.client
        self._ttl = int(1000 * ttl)

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        pipe = self._pipeline()
        for name in names:
            pipe.getex(name, px=self._ttl)
        return [value or None for value in await pipe.execute()]

    async def put(self, name: str, value: memoryview) -> bool:
        if not await self._client.set(name, _CLAIMED, nx=True, px=int(1000 * CLAIM)):
            return False
        await self._client.set(name, value, px=self._ttl)
        return True

    async def refresh(self, names: Sequence[str]) -> list[bool]:
        pipe = self._pipeline()
        for name in names:
            pipe.pexpire(name, self._ttl)
        return [bool(found) for found in await pipe.execute()]

    async def delete(self, name: str) -> None:
        await self._client.delete(name)

    async def used_bytes(self) -> int:
        if isinstance(self._client, Redis):
            return int((await self._client.info("memory"))["used_memory"])
        await self._client.initialize()
        nodes = self._client.get_primaries()
        found = [await self._client.execute_command("INFO", "memory", target_nodes=node) for node in nodes]
        return sum(int(memory["used_memory"]) for memory in found)

    async def close(self) -> None:
        await self._redis.close()

    def _pipeline(self) -> Any:
        client = self._client
        return client.pipeline(transaction=False) if isinstance(client, Redis) else client.pipeline()


def block_store(url: str, *, ttl: float, timeout: float) -> Callable[[], BlockStore]:
    """What connects to the store that a URL names (as for sessions, `coordinator.store`), on the loop that will use
    it. timeout: seconds that one trip may take. Raises ConfigError."""
    scheme = url.partition("://")[0]
    if scheme not in CLIENTS or "://" not in url:
        raise ConfigError("kv_store_url", scheme, f"use {', '.join(f'{name}://' for name in CLIENTS)}")
    address, connect = parse_address(url), CLIENTS[scheme]
    connect(address, timeout)  # says at boot what is wrong with it; nothing is connected before the first call
    return lambda: RedisBlocks(connect(address, timeout), ttl)
