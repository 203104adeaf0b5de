"""Sessions in this process: the default of one coordinator, and the oracle of the other stores."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from coordinator.session import SessionRecord
from coordinator.store import outcomes
from specdec.core.tree import Ids

DEFAULT_MAX_SESSIONS = 10_000


@dataclass(slots=True)
class _Entry:
    """written: the epoch of the last commit. Times are the clock's."""

    record: SessionRecord
    written: int
    expires: float
    lease_until: float


class MemoryStore:
    """A `SessionStore`. ttl and lease in seconds of `clock`; at most max_sessions unexpired sessions."""

    def __init__(
        self,
        *,
        ttl: float,
        lease: float,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl = ttl
        self._lease = lease
        self._max_sessions = max_sessions
        self._clock = clock
        self._last_epoch = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the least recently used, so first to expire, first

    async def create(self, record: SessionRecord) -> None:
        if self._find(record.session_id):
            raise outcomes.exists(record.session_id)
        self._put(record)

    async def load(self, session_id: str) -> SessionRecord | None:
        entry = self._find(session_id)
        return _lent(entry.record) if entry else None

    async def take(self, session_id: str, *, resume: bool) -> SessionRecord:
        entry = self._find(session_id)
        if entry is None:
            raise outcomes.missing(session_id)
        if not resume and entry.record.running and self._clock() < entry.lease_until:
            raise outcomes.busy(session_id)
        # above every epoch that any take gave out: a record that was lost and written anew fences the same owners
        self._last_epoch = max(self._last_epoch, entry.record.epoch) + 1
        entry.record = replace(entry.record, epoch=self._last_epoch, running=True)
        self._refresh(session_id, entry)
        return _lent(entry.record)

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
        assert token_ids.dtype == np.uint32 and token_ids.ndim == 1, f"token ids are uint32[n], not {token_ids.dtype}"
        entry = self._owned(session_id, epoch)
        record, length = entry.record, len(entry.record.token_ids)
        if record.epoch < epoch or length < expected_length:
            raise outcomes.StoreBehind(session_id, length)
        stored = record.token_ids[expected_length:]
        if not (np.array_equal(stored, token_ids) and record.finish == finish):
            if length != expected_length or not record.running:
                raise outcomes.conflict(session_id, epoch, length)
            grown = np.concatenate([record.token_ids, token_ids])
            grown.flags.writeable = False
            record = replace(record, token_ids=grown, finish=finish)
        running = record.running and finish is None
        entry.record = replace(record, running=running, held=dict(held))
        entry.written = epoch
        self._refresh(session_id, entry)

    async def replace(self, record: SessionRecord) -> None:
        entry = self._find(record.session_id)
        if entry:
            stored = entry.record
            if stored.epoch > record.epoch:
                raise outcomes.superseded(record.session_id, record.epoch, stored.epoch)
            shorter = entry.written == record.epoch and len(record.token_ids) < len(stored.token_ids)
            ended = stored.epoch == record.epoch and record.running and not stored.running
            if shorter or ended:
                raise outcomes.conflict(record.session_id, record.epoch, len(stored.token_ids))
        self._put(record)

    async def release(self, session_id: str, epoch: int) -> None:
        entry = self._find(session_id)
        if entry and entry.record.epoch == epoch:
            entry.record = replace(entry.record, running=False)
            self._refresh(session_id, entry)

    async def heartbeat(self, session_id: str, epoch: int) -> None:
        entry = self._owned(session_id, epoch)
        if entry.record.epoch < epoch:
            raise outcomes.StoreBehind(session_id, len(entry.record.token_ids))
        self._refresh(session_id, entry)

    async def ping(self) -> None:
        return

    async def close(self) -> None:
        self._entries.clear()

    def _find(self, session_id: str) -> _Entry | None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).expires <= now:
            self._entries.popitem(last=False)
        return self._entries.get(session_id)

    def _owned(self, session_id: str, epoch: int) -> _Entry:
        entry = self._find(session_id)
        if entry is None:
            raise outcomes.StoreBehind(session_id, 0)
        if entry.record.epoch > epoch:
            raise outcomes.superseded(session_id, epoch, entry.record.epoch)
        return entry

    def _put(self, record: SessionRecord) -> None:
        if record.session_id not in self._entries and len(self._entries) >= self._max_sessions:
            raise outcomes.full(f"{self._max_sessions} sessions")
        entry = _Entry(_own(record), record.epoch, expires=0.0, lease_until=0.0)
        self._entries[record.session_id] = entry
        self._refresh(record.session_id, entry)

    def _refresh(self, session_id: str, entry: _Entry) -> None:
        now = self._clock()
        entry.expires = now + self._ttl
        if entry.record.running:
            entry.lease_until = now + self._lease
        self._entries.move_to_end(session_id)


def _own(record: SessionRecord) -> SessionRecord:
    """A copy that the caller cannot change under the store."""
    token_ids = record.token_ids.copy()
    token_ids.flags.writeable = False
    return replace(record, token_ids=token_ids, held=dict(record.held))


def _lent(record: SessionRecord) -> SessionRecord:
    return replace(record, held=dict(record.held))
