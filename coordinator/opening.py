"""How a turn begins: as a new session, as the next turn of one, or as the resumption of a turn that lost its owner."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coordinator.admission import Admitted
from coordinator.session import ChatMessage, SessionRecord
from coordinator.store.outcomes import missing
from coordinator.store.protocol import SessionStore
from coordinator.tokenizer import TextCodec
from coordinator.turn_request import fit
from specdec.core.errors import FailedPrecondition, InvalidArgument
from specdec.core.tree import Ids
from specdec.edge.messages import ReplicaInfo

# A caller that cancels and at once starts its next turn meets the old owner while it lets go.
BUSY_PATIENCE = 1.0  # seconds
BUSY_PAUSE = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that we own. received: output tokens of the turn that the caller has already."""

    record: SessionRecord
    received: int


class Opening:
    """Turns an admitted request into a session under our epoch. serves: whether any verifier has the model of this
    fingerprint."""

    def __init__(self, store: SessionStore, codec: TextCodec, serves: Callable[[str], bool]) -> None:
        self._store = store
        self._codec = codec
        self._serves = serves

    async def open(
        self, admitted: Admitted, index: int, target: ReplicaInfo, max_context: int, owner: str = ""
    ) -> Opened:
        """The session for choice `index`; a new one is pinned to the model of `target`, as is the next turn of one
        whose own model nobody serves any more. owner: name of the caller's key; a session of another's does not exist
        for it.

        Raises NotFound, FailedPrecondition (another owner runs it), InvalidArgument (it does not fit its session),
        Unavailable."""
        if not admitted.session_id:
            return await self._create(admitted, index, target, owner)
        # Looked at before it is taken: neither a stranger nor a mistaken count must end the stream of whoever runs it.
        record = await self._store.load(admitted.session_id)
        if record is not None and record.owner != owner:
            raise missing(admitted.session_id)
        if admitted.kind == "resume":
            return await self._resume(admitted, record)
        return await self._next_turn(admitted, target, max_context)

    async def _create(self, admitted: Admitted, index: int, target: ReplicaInfo, owner: str) -> Opened:
        record = SessionRecord(
            session_id=uuid.uuid4().hex,
            token_ids=admitted.prompt_ids,
            turn_start=len(admitted.prompt_ids),
            turn=admitted.turns[index],
            fingerprint=target.model_fingerprint,
            dtype=target.dtype,
            messages=admitted.messages,
            owner=owner,
        )
        await self._store.create(record)
        return Opened(record, 0)

    async def _resume(self, admitted: Admitted, before: SessionRecord | None) -> Opened:
        received = admitted.received_tokens or 0
        if before is not None:
            _check_received(before, received)
        record = await self._store.take(admitted.session_id, resume=True)
        try:
            _check_received(record, received)
        except InvalidArgument:
            await self._store.release(record.session_id, record.epoch)
            raise
        return Opened(record, received)

    async def _next_turn(self, admitted: Admitted, target: ReplicaInfo, max_context: int) -> Opened:
        old = await self._take(admitted.session_id)
        if not self._serves(old.fingerprint):
            old = replace(old, fingerprint=target.model_fingerprint, dtype=target.dtype)
        try:
            old = _truncated(old, admitted.received_tokens)
            ids, messages = await asyncio.to_thread(self._extended, old, admitted)
            turn = fit(admitted.turns[0], len(ids), max_context)
            record = replace(
                old, token_ids=ids, turn_start=len(ids), turn=turn, messages=messages, finish=None, running=True
            )
            await self._store.replace(record)
        except BaseException:
            await self._store.release(old.session_id, old.epoch)
            raise
        return Opened(record, 0)

    async def _take(self, session_id: str) -> SessionRecord:
        clock = asyncio.get_running_loop().time
        deadline = clock() + BUSY_PATIENCE
        while True:
            try:
                return await self._store.take(session_id, resume=False)
            except FailedPrecondition:
                if clock() >= deadline:
                    raise
                await asyncio.sleep(BUSY_PAUSE)

    def _extended(self, old: SessionRecord, admitted: Admitted) -> tuple[Ids, tuple[ChatMessage, ...]]:
        """The context with the new turn's prompt, and the chat that it answers (contract.md, chat turns)."""
        if bool(old.messages) != (admitted.kind == "chat"):
            asked = "chat messages" if old.messages else "text or token_ids"
            raise InvalidArgument(admitted.kind, admitted.session_id, f"this session began with {asked}")
        if admitted.kind != "chat":
            return np.concatenate([old.token_ids, admitted.prompt_ids]), ()
        answer = self._codec.decode(old.output_ids)
        messages = (*old.messages, ChatMessage("assistant", answer), *admitted.messages)
        ended = len(old.output_ids) > 0 and int(old.output_ids[-1]) in old.turn.params.end_ids
        added = self._codec.next_turn_ids(old.messages, answer, old.token_ids, admitted.messages, ended)
        if added is None:
            return _ids(self._codec.chat_prompt_ids(messages)), messages
        return np.concatenate([old.token_ids, _ids(added)]), messages


def _truncated(record: SessionRecord, received: int | None) -> SessionRecord:
    """The session as the caller knows it: what it has not received is dropped."""
    if received is None:
        return record
    _check_received(record, received)
    return replace(record, token_ids=record.token_ids[: record.turn_start + received])


def _check_received(record: SessionRecord, received: int) -> None:
    if received > len(record.output_ids):
        raise InvalidArgument(
            "received_tokens", received, f"the turn has {len(record.output_ids)} output tokens so far"
        )


def _ids(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.uint32)
