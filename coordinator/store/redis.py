"""Sessions in Redis: a single server, one behind Sentinel, or a cluster. The work is in redis_scripts.py."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from secrets import token_hex
from typing import Any, NoReturn
from urllib.parse import quote

from coordinator.session import SessionRecord
from coordinator.store import outcomes, record_codec, redis_scripts
from coordinator.store.redis_link import RedisLink
from coordinator.store.redis_scripts import Script
from specdec.core.tree import Ids

_log = logging.getLogger(__name__)


class RedisStore:
    """A `SessionStore`. ttl and lease in seconds, at a resolution of 1 ms."""

    def __init__(self, link: RedisLink, *, ttl: float, lease: float) -> None:
        self._link = link
        self._times = (max(1, round(ttl * 1000)), max(1, round(lease * 1000)))
        self._looked_at_eviction = False

    @property
    def connections_in_use(self) -> int:
        return self._link.in_use

    async def create(self, record: SessionRecord) -> None:
        await self._run(redis_scripts.CREATE, record.session_id, record.epoch, token_hex(8), *_values(record))

    async def load(self, session_id: str) -> SessionRecord | None:
        status, value = await self._link.run(redis_scripts.LOAD, _keys(session_id), ())
        return None if status == b"MISSING" else _record(session_id, value)

    async def take(self, session_id: str, *, resume: bool) -> SessionRecord:
        value = await self._run(redis_scripts.TAKE, session_id, 0, token_hex(8), int(resume))
        return _record(session_id, value)

    async def append(
        self,
        session_id: str,
        *,
        epoch: int,
        expected_length: int,
        token_ids: Ids,
        finish: str | None,
        held: Mapping[str, int],
    ) -> None:
        new, end = record_codec.encode_ids(token_ids), record_codec.encode_finish(finish)
        await self._run(
            redis_scripts.APPEND,
            session_id,
            epoch,
            epoch,
            expected_length,
            new,
            end,
            record_codec.encode_held(held),
        )

    async def replace(self, record: SessionRecord) -> None:
        await self._run(redis_scripts.REPLACE, record.session_id, record.epoch, *_values(record))

    async def release(self, session_id: str, epoch: int) -> None:
        await self._run(redis_scripts.RELEASE, session_id, epoch, epoch)

    async def heartbeat(self, session_id: str, epoch: int) -> None:
        await self._run(redis_scripts.HEARTBEAT, session_id, epoch, epoch)

    async def ping(self) -> None:
        """Also warns, once, of a server that would evict sessions: an evicted session cannot be resumed."""
        await self._link.everywhere("PING")
        if not self._looked_at_eviction:
            for memory in await self._link.everywhere("INFO", "memory"):
                policy = memory["maxmemory_policy"]
                if policy != "noeviction" and memory["maxmemory"]:
                    _log.warning(
                        "the session store may evict sessions (maxmemory-policy %s): set it to noeviction",
                        policy,
                    )
            self._looked_at_eviction = True

    async def close(self) -> None:
        await self._link.close()

    async def _run(self, script: Script, session_id: str, epoch: int, *args: str | bytes | int) -> Any:
        status, value = await self._link.run(script, _keys(session_id), (*self._times, *args))
        if status != b"OK":
            _refuse(status, session_id, epoch, int(value))
        return value


def _keys(session_id: str) -> tuple[str, str, str]:
    """Quoted, so that no id can break the hash tag that keeps a session in one slot."""
    assert session_id, "a session has an id"
    tag = f"specdec:{{{quote(session_id, safe='')}}}"
    return f"{tag}:meta", f"{tag}:tokens", f"{tag}:owner"


def _values(record: SessionRecord) -> tuple[str | bytes, ...]:
    """In the order that the scripts' `put` reads them."""
    meta = record_codec.encode(record)
    fields = [meta[name] for name in ("epoch", "running", "length", "finish", "held", "body")]
    return (*fields, record_codec.encode_ids(record.token_ids))


def _record(session_id: str, value: Any) -> SessionRecord:
    pairs, raw = value
    names, texts = pairs[::2], pairs[1::2]
    meta = {name.decode(): text.decode() for name, text in zip(names, texts, strict=True)}
    return record_codec.decode(session_id, meta, raw)


def _refuse(status: bytes, session_id: str, epoch: int, number: int) -> NoReturn:
    match status:
        case b"EXISTS":
            raise outcomes.exists(session_id)
        case b"MISSING":
            raise outcomes.missing(session_id)
        case b"BUSY":
            raise outcomes.busy(session_id)
        case b"STALE":
            raise outcomes.superseded(session_id, epoch, number)
        case b"CONFLICT":
            raise outcomes.conflict(session_id, epoch, number)
        case b"BEHIND":
            raise outcomes.StoreBehind(session_id, number)
    raise AssertionError(f"a script answered {status!r}")
