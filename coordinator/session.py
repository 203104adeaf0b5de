"""The truth about a session, as the store holds it. Replicas hold caches of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.turn import Turn
from specdec.core.tree import Ids


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """token_ids: uint32[n], everything committed, prompt included; turn_start: index of the current turn's first
    output token. messages: the chat up to and including the message that the current turn answers, () for sessions
    of plain text. finish: why the turn ended ("stop", "length"), None while it has not. running: an owner holds it.
    epoch rises with each owner and fences off the older ones. held: replica id -> context tokens it holds. owner:
    name of the key that it belongs to, "" where no keys are asked for."""

    session_id: str
    token_ids: Ids
    turn_start: int
    turn: Turn
    fingerprint: str
    dtype: str
    messages: tuple[ChatMessage, ...] = ()
    finish: str | None = None
    running: bool = True
    epoch: int = 1
    held: dict[str, int] = field(default_factory=dict)
    owner: str = ""

    @property
    def output_ids(self) -> Ids:
        return self.token_ids[self.turn_start :]
