"""What the coordinator asks of a session store. Every store means the same: one test module for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coordinator.session import SessionRecord
from specdec.core.tree import Ids


class SessionStore(Protocol):
    """The truth about sessions. The owner is whoever took the session last; its epoch fences off older ones.

    An owner that has finished or released a session writes no more under that epoch. Every method is atomic,
    bounded by the store's deadline, safe to repeat after an ambiguous failure, and raises

    * `Unavailable` (STORE_UNAVAILABLE): no answer within the deadline. A write may still have happened;
    * `ResourceExhausted` (STORE_FULL): the store has no room."""

    async def create(self, record: SessionRecord) -> None:
        """Write a new session; its owner lease starts if it runs. FailedPrecondition (SESSION_EXISTS)."""
        ...

    async def load(self, session_id: str) -> SessionRecord | None:
        """Read a session, None where there is none (any more). Takes nothing over and refreshes nothing."""
        ...

    async def take(self, session_id: str, *, resume: bool) -> SessionRecord:
        """Become the owner: raises the epoch, marks the session running, starts the lease.

        A new turn (resume False) may not take a session that an owner runs under a live lease:
        FailedPrecondition (SESSION_BUSY). A resume always takes over. NotFound where there is no session."""
        ...

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
        """Commit uint32[n] behind the first `expected_length` tokens; a `finish` ends the turn and the lease.

        StoreBehind: the store holds less than the owner (it lost writes or the record): `replace`. Aborted:
        superseded by a newer owner, or (STORE_CONFLICT) the store holds other tokens under this epoch."""
        ...

    async def replace(self, record: SessionRecord) -> None:
        """Write the whole record under record.epoch, whether it is there, lags, or has expired.

        Aborted: as in `append`; STORE_CONFLICT also where it would undo what this epoch has committed."""
        ...

    async def release(self, session_id: str, epoch: int) -> None:
        """Stop without finishing. No error where a newer owner or nothing is there."""
        ...

    async def heartbeat(self, session_id: str, epoch: int) -> None:
        """Refresh TTL and lease. Aborted: superseded. StoreBehind: the record is missing or older."""
        ...

    async def ping(self) -> None:
        """Return when the store can serve; Unavailable otherwise."""
        ...

    async def close(self) -> None: ...
