"""Session stores behind one `open_store(url)`. A new kind is one class (or one client) and one entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.store.memory import DEFAULT_MAX_SESSIONS, MemoryStore
from coordinator.store.outcomes import StoreBehind
from coordinator.store.protocol import SessionStore
from coordinator.store.redis import RedisStore
from coordinator.store.redis_link import RedisLink
from specdec.core.errors import ConfigError
from specdec.edge.redis_clients import CLIENTS, RedisClient
from specdec.edge.store_address import StoreAddress, parse_address

__all__ = ["MemoryStore", "RedisStore", "SessionStore", "StoreBehind", "open_store"]


@dataclass(frozen=True, slots=True)
class _Times:
    ttl: float
    lease: float
    deadline: float


def open_store(url: str, *, ttl: float, lease: float, deadline: float) -> SessionStore:
    """The store that a URL names; nothing is connected before the first call.

    * memory://?max_sessions=N
    * redis://[user:password@]host:port/0, rediss://...?ssl_ca_certs=FILE
    * redis+sentinel://[user:password@]host:port,host:port/SERVICE?db=0
    * redis+cluster://[user:password@]host:port,host:port

    Redis stores take ?max_connections=N, all but the cluster ?wait_replicas=N, Sentinel ?sentinel_password=.
    ttl: seconds a session lives after its last use. lease: seconds an owner counts as alive after its last
    commit or heartbeat. deadline: seconds for one call. Raises ConfigError."""
    for name, value in (("ttl", ttl), ("lease", lease), ("deadline", deadline)):
        if not value > 0:
            raise ConfigError(f"store {name}", value, "give seconds above 0")
    if lease > ttl:
        raise ConfigError("store lease", lease, f"give at most the ttl, {ttl:g} s")
    scheme = url.partition("://")[0]
    if scheme not in STORES or "://" not in url:
        raise ConfigError("store URL scheme", scheme, f"use {', '.join(f'{name}://' for name in STORES)}")
    return STORES[scheme](parse_address(url), _Times(ttl, lease, deadline))


def _memory(address: StoreAddress, times: _Times) -> SessionStore:
    address.allow("max_sessions")
    max_sessions = address.number("max_sessions", DEFAULT_MAX_SESSIONS)
    return MemoryStore(ttl=times.ttl, lease=times.lease, max_sessions=max_sessions)


def _redis(
    connect: Callable[[StoreAddress, float], RedisClient],
) -> Callable[[StoreAddress, _Times], SessionStore]:
    def build(address: StoreAddress, times: _Times) -> SessionStore:
        link = RedisLink(connect(address, times.deadline / 2), times.deadline)
        return RedisStore(link, ttl=times.ttl, lease=times.lease)

    return build


STORES: dict[str, Callable[[StoreAddress, _Times], SessionStore]] = {
    "memory": _memory,
    **{scheme: _redis(connect) for scheme, connect in CLIENTS.items()},
}
