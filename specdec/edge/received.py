"""What a client has of one Generate call: enough to go on after its connection is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from protos.generation_pb2 import Chunk, Complete, GenerateRequest, Started
from specdec.core.errors import ReplicaFault

Event = Started | Chunk | Complete


@dataclass(slots=True)
class Received:
    """One choice. tokens: output tokens of the turn that the caller has."""

    index: int
    session_id: str
    tokens: int = 0
    ended: bool = False

    def resumption(self) -> GenerateRequest:
        """What asks for the rest (contract.md, resume)."""
        return GenerateRequest(session_id=self.session_id, received_tokens=self.tokens)


@dataclass(slots=True)
class Ledger:
    """Of all choices of a call. wanted: how many there are. before: output tokens that the caller had already, where
    the call itself is a resume."""

    wanted: int
    before: int = 0
    choices: dict[int, Received] = field(default_factory=dict)

    @property
    def resumable(self) -> bool:
        """Whether every choice has begun: a session whose id never came cannot be asked for."""
        return len(self.choices) == self.wanted

    def unfinished(self) -> Iterator[Received]:
        return (choice for choice in self.choices.values() if not choice.ended)

    def take(self, event: Event) -> Event:
        """Notes what the caller is about to get. Raises ReplicaFault for tokens that are not the next ones."""
        if isinstance(event, Started):
            self.choices[event.index] = Received(event.index, event.session_id, self.before)
            return event
        choice = self.choices.get(event.index)
        if choice is None:
            raise ReplicaFault(f"choice {event.index} came before it was started", reason="OUT_OF_ORDER")
        if isinstance(event, Complete):
            choice.ended = True
        elif event.offset != choice.tokens:
            raise ReplicaFault(f"token {event.offset} came where {choice.tokens} is next", reason="OUT_OF_ORDER")
        else:
            choice.tokens += len(event.tokens)
        return event
