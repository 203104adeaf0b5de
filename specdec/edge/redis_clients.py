"""Redis clients by URL scheme. None of them retries by itself: `RedisLink` does, inside one deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ReadOnlyError, TimeoutError

from specdec.core.errors import ConfigError
from specdec.edge.store_address import StoreAddress

DEFAULT_MAX_CONNECTIONS = 32


@dataclass(frozen=True)
class RedisClient:
    """max_connections bounds the commands in flight. wait_replicas: how many replicas must have a write
    before it counts as done."""

    client: Redis | RedisCluster
    close: Callable[[], Awaitable[None]]
    max_connections: int
    wait_replicas: int


def connect_single(address: StoreAddress, timeout: float) -> RedisClient:
    address.allow("db", "max_connections", "wait_replicas", "ssl_ca_certs")
    host, port = _hosts(address, at_most=1)[0]
    database = address.path or address.options.get("db", "0")
    if not database.isdecimal():
        raise ConfigError("store database", database, "write a number: redis://host:port/0")
    client = Redis(host=host, port=port, db=int(database), **_tls(address), **_options(address, timeout))
    return _client(address, client, client.aclose)


def connect_sentinel(address: StoreAddress, timeout: float) -> RedisClient:
    """username and password are the master's; sentinels that want one get the option sentinel_password."""
    address.allow("db", "max_connections", "wait_replicas", "sentinel_password")
    if not address.path:
        raise ConfigError("store service", address.path, "write redis+sentinel://host:port,host:port/SERVICE")
    options = _options(address, timeout)
    asking = options | {"username": None, "password": address.options.get("sentinel_password")}
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        list(_hosts(address)), sentinel_kwargs=asking, db=address.number("db", 0), **options
    )
    client = sentinels.master_for(address.path)

    async def close() -> None:
        await client.aclose()
        await sentinels.aclose()

    return _client(address, client, close)


def connect_cluster(address: StoreAddress, timeout: float) -> RedisClient:
    address.allow("max_connections")  # WAIT would go out on another connection than its write
    nodes = [ClusterNode(host, port) for host, port in _hosts(address)]
    client = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **_options(address, timeout))

    async def close() -> None:
        await client.aclose()
        for group in ("nodes_cache", "startup_nodes"):  # aclose leaves them open after a failure
            await client.nodes_manager.aclose(group)

    return _client(address, client, close)


# By URL scheme.
CLIENTS: dict[str, Callable[[StoreAddress, float], RedisClient]] = {
    "redis": connect_single,
    "rediss": connect_single,
    "redis+sentinel": connect_sentinel,
    "redis+cluster": connect_cluster,
}


def _client(address: StoreAddress, client: Redis | RedisCluster, close: Callable[[], Awaitable[None]]) -> RedisClient:
    return RedisClient(client, close, _max_connections(address), address.number("wait_replicas", 0))


def _options(address: StoreAddress, timeout: float) -> dict[str, Any]:
    """`Retry` drops a connection that failed, timed out or met a demoted master, then gives up."""
    return {
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0, (ConnectionError, TimeoutError, ReadOnlyError)),
        "max_connections": _max_connections(address),
        "protocol": 2,
        "driver_info": None,
    }


def _max_connections(address: StoreAddress) -> int:
    count = address.number("max_connections", DEFAULT_MAX_CONNECTIONS)
    if count == 0:
        raise ConfigError("store option max_connections", count, "give at least 1")
    return count


def _tls(address: StoreAddress) -> dict[str, Any]:
    ca_certs = address.options.get("ssl_ca_certs")
    if address.scheme != "rediss":
        if ca_certs:
            raise ConfigError("store option ssl_ca_certs", ca_certs, "use rediss://")
        return {}
    if ca_certs and not Path(ca_certs).is_file():
        raise ConfigError("store option ssl_ca_certs", ca_certs, "name a PEM file that exists")
    return {"ssl": True, "ssl_ca_certs": ca_certs}


def _hosts(address: StoreAddress, at_most: int = 64) -> tuple[tuple[str, int], ...]:
    if not 1 <= len(address.hosts) <= at_most:
        raise ConfigError("store hosts", str(address), f"{address.scheme}:// takes 1 to {at_most} host:port")
    return address.hosts
