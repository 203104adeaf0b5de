"""Session stores that wait, fail and tell: a memory store behind a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from coordinator.session import SessionRecord
from coordinator.store import MemoryStore, StoreBehind
from specdec.core.errors import Unavailable
from specdec.core.tree import Ids


class GatedStore(MemoryStore):
    """gate: appends and releases wait for it; waiting: how many do. down: every call raises Unavailable. lost: the next
    append finds that many tokens fewer than were committed. log: what was done, in order."""

    def __init__(self, *, ttl: float = 60.0, lease: float = 15.0) -> None:
        super().__init__(ttl=ttl, lease=lease)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.down = False
        self.lost = 0
        self.log: list[str] = []

    async def create(self, record: SessionRecord) -> None:
        self._check()
        await super().create(record)

    async def load(self, session_id: str) -> SessionRecord | None:
        self._check()
        return await super().load(session_id)

    async def take(self, session_id: str, *, resume: bool) -> SessionRecord:
        self._check()
        return await super().take(session_id, resume=resume)

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
        self.log.append("append")
        await self._wait()
        if self.lost:
            held_tokens, self.lost = expected_length - self.lost, 0
            entry = self._entries[session_id]
            entry.record = _cut(entry.record, held_tokens)
            raise StoreBehind(session_id, held_tokens)
        await super().append(
            session_id, epoch=epoch, expected_length=expected_length, token_ids=token_ids, finish=finish, held=held
        )
        self.log.append("appended")

    async def replace(self, record: SessionRecord) -> None:
        self._check()
        self.log.append("replace")
        await super().replace(record)

    async def release(self, session_id: str, epoch: int) -> None:
        self.log.append("release")
        await self._wait()
        await super().release(session_id, epoch)

    async def ping(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.down:
            raise Unavailable("the session store does not answer", reason="STORE_UNAVAILABLE")

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
            self._check()
        finally:
            self.waiting -= 1


def _cut(record: SessionRecord, length: int) -> SessionRecord:
    return replace(record, token_ids=record.token_ids[:length])
