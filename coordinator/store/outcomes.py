"""How a store refuses. One place, so that every store says the same."""

from __future__ import annotations

from specdec.core.errors import Aborted, FailedPrecondition, NotFound, ResourceExhausted, SpecdecError


class StoreBehind(SpecdecError):
    """The store lost what this owner had committed, or the whole record (held 0). The owner writes it back
    with `SessionStore.replace`. `held`: how many tokens the store has."""

    reason = "STORE_BEHIND"

    def __init__(self, session_id: str, held: int) -> None:
        super().__init__(f"session {session_id!r}: the store holds {held} tokens, fewer than its owner committed")
        self.held = held


def exists(session_id: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"session {session_id!r} exists already: continue it, or choose another session_id",
        reason="SESSION_EXISTS",
    )


def missing(session_id: str) -> NotFound:
    return NotFound(f"session {session_id!r} does not exist or has expired: start a new one with its prompt")


def busy(session_id: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"session {session_id!r} is generating: wait for the end of its turn, or resume it",
        reason="SESSION_BUSY",
    )


def superseded(session_id: str, epoch: int, current: int) -> Aborted:
    return Aborted(f"session {session_id!r}: epoch {epoch} was superseded by epoch {current}")


def conflict(session_id: str, epoch: int, held: int) -> Aborted:
    return Aborted(
        f"session {session_id!r}: under epoch {epoch} the store holds {held} tokens, not its owner's: resume",
        reason="STORE_CONFLICT",
    )


def full(detail: str) -> ResourceExhausted:
    return ResourceExhausted(f"the session store has no room: {detail}", reason="STORE_FULL")
