"""Every kind of store behind the same test handles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
import redis
from redis.asyncio import Redis

from coordinator.session import ChatMessage, SessionRecord
from coordinator.store import MemoryStore, RedisStore, SessionStore, open_store
from coordinator.turn import Turn
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids

TTL, LEASE = 3600.0, 20.0  # seconds
HANG_GUARD = 10.0  # times a deadline: a shared machine may be slow, a hang is for ever


def ids(*values: int) -> Ids:
    return np.array(values, dtype=np.uint32)


def record(session_id: str, token_ids: Ids | None = None, **changes: object) -> SessionRecord:
    turn = Turn(
        params=SamplingParams(temperature=0.1 + 0.2, logit_bias=((7, -1.5), (9, 1e-308)), end_ids=(2,)),
        max_tokens=64,
        seed=2**64 - 1,
        stop=("\n\n", "ende"),
        eos_ids=(2,),
    )
    fields = {
        "session_id": session_id,
        "token_ids": ids(1, 2, 3) if token_ids is None else token_ids,
        "turn_start": 3,
        "turn": turn,
        "fingerprint": "f00d",
        "dtype": "float32",
        "messages": (ChatMessage("user", "grüß Gott \U0001f600 }{"),),
    }
    return SessionRecord(**(fields | changes))  # type: ignore[arg-type]


def same(a: SessionRecord | None, b: SessionRecord | None) -> bool:
    """Equality that compares arrays whole and leaves the epoch to the tests that are about it."""
    if a is None or b is None:
        return a is b
    others = [[(name, getattr(r, name)) for name in r.__slots__ if name not in ("token_ids", "epoch")] for r in (a, b)]
    return bool(np.array_equal(a.token_ids, b.token_ids)) and others[0] == others[1]


async def append(
    store: SessionStore,
    name: str,
    epoch: int,
    expected: int,
    *new: int,
    finish: str | None = None,
    held: dict[str, int] | None = None,
) -> None:
    await store.append(name, epoch=epoch, expected_length=expected, token_ids=ids(*new), finish=finish, held=held or {})


async def stored(store: SessionStore, name: str) -> SessionRecord:
    found = await store.load(name)
    assert found is not None
    return found


async def commands_in_flight(store: SessionStore, count: int = 1) -> None:
    """Return once `count` commands are on the wire; on loopback a few turns of the loop write one out."""
    assert isinstance(store, RedisStore)
    while store.connections_in_use < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)


def in_use(store: SessionStore) -> int:
    """As the client library's pool counts, not as we do."""
    assert isinstance(store, RedisStore)
    client = store._link._redis.client
    if isinstance(client, Redis):
        return len(client.connection_pool._in_use_connections)
    return sum(len(node._connections) - len(node._free) for node in client.get_nodes())


class Kind(Protocol):
    """open: another coordinator's store on the same sessions. expire, lapse: the TTL, the lease of a session runs
    out. key_ttls: every key with its TTL in ms, -1 for none."""

    name: str

    def open(self, deadline: float = 10.0, options: str = "") -> SessionStore: ...
    def expire(self, session_id: str) -> None: ...
    def lapse(self, session_id: str) -> None: ...
    def key_ttls(self) -> Iterator[tuple[str, int]]: ...


@dataclass
class MemoryKind:
    """One store in one process: `open` gives it to every coordinator. Time is ours."""

    name: str = "memory"
    now: float = 0.0
    store: MemoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryStore(ttl=TTL, lease=LEASE, clock=lambda: self.now)

    def open(self, deadline: float = 10.0, options: str = "") -> SessionStore:
        return self.store

    def expire(self, session_id: str) -> None:
        self.now += TTL

    def lapse(self, session_id: str) -> None:
        self.now += LEASE

    def key_ttls(self) -> Iterator[tuple[str, int]]:
        return iter(())


@dataclass
class RedisKind:
    """admin: a plain client of each server that holds sessions."""

    name: str
    url: str
    admin: Callable[[], list[redis.Redis]]

    def open(self, deadline: float = 10.0, options: str = "") -> RedisStore:
        joint = "&" if "?" in self.url else "?"
        url = self.url + (joint + options if options else "")
        return cast(RedisStore, open_store(url, ttl=TTL, lease=LEASE, deadline=deadline))

    def expire(self, session_id: str) -> None:
        self._delete(session_id, "meta", "tokens", "owner")

    def lapse(self, session_id: str) -> None:
        self._delete(session_id, "owner")

    def lose(self, session_id: str, part: str) -> None:
        self._delete(session_id, part)

    def key_ttls(self) -> Iterator[tuple[str, int]]:
        for client in self.admin():
            for key in client.scan_iter("specdec:*"):
                yield str(key), client.pttl(key)

    def _delete(self, session_id: str, *parts: str) -> None:
        for client in self.admin():
            for key in list(client.scan_iter(f"specdec:*{session_id}*")):
                if str(key).rpartition(":")[2] in parts:
                    client.delete(key)


@asynccontextmanager
async def opened(kind: Kind, **options: object) -> AsyncIterator[SessionStore]:
    store = kind.open(**options)  # type: ignore[arg-type]
    try:
        yield store
    finally:
        if kind.name != "memory":
            await store.close()
