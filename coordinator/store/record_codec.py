"""A session record as named text fields and raw token bytes. Exact: integers of any size and every float come
back as they were, and nothing on the way parses them. Fields that a commit changes stand alone, the rest is
`body`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np

from coordinator.session import ChatMessage, SessionRecord
from coordinator.turn import Turn
from specdec.core.errors import FailedPrecondition
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids

T = TypeVar("T", SamplingParams, Turn, ChatMessage)
_BODY = ("turn_start", "turn", "fingerprint", "dtype", "messages", "owner")


def encode_ids(token_ids: Ids) -> bytes:
    """uint32[n] as 4n little-endian bytes."""
    assert token_ids.dtype == np.uint32 and token_ids.ndim == 1, f"token ids are uint32[n], not {token_ids.dtype}"
    return token_ids.astype("<u4", copy=False).tobytes()


def decode_ids(raw: bytes) -> Ids:
    """The inverse of `encode_ids`; the array is read-only."""
    return np.frombuffer(raw, dtype="<u4").astype(np.uint32, copy=False)


def encode_held(held: Mapping[str, int]) -> str:
    return json.dumps(dict(held), separators=(",", ":"))


def encode_finish(finish: str | None) -> str:
    assert finish != "", "a finish reason is None or a word"
    return finish or ""


def encode(record: SessionRecord) -> dict[str, str]:
    """Everything but the session id and the token ids."""
    whole = asdict(record)
    return {
        "epoch": str(record.epoch),
        "running": str(int(record.running)),
        "length": str(len(record.token_ids)),
        "finish": encode_finish(record.finish),
        "held": encode_held(record.held),
        "body": json.dumps({name: whole[name] for name in _BODY}, separators=(",", ":")),
    }


def decode(session_id: str, meta: Mapping[str, str], raw: bytes) -> SessionRecord:
    """Raises FailedPrecondition (RECORD_VERSION) for a record with fields that this version does not know:
    sampling without them would draw from another law."""
    body = json.loads(meta["body"])
    turn = body["turn"]
    turn["params"] = _build(SamplingParams, turn["params"])
    return SessionRecord(
        session_id=session_id,
        token_ids=decode_ids(raw),
        turn_start=body["turn_start"],
        turn=_build(Turn, turn),
        fingerprint=body["fingerprint"],
        dtype=body["dtype"],
        messages=tuple(_build(ChatMessage, message) for message in body["messages"]),
        finish=meta["finish"] or None,
        running=meta["running"] == "1",
        epoch=int(meta["epoch"]),
        held=json.loads(meta["held"]),
        owner=body.get("owner", ""),
    )


def _build(kind: type[T], values: dict[str, Any]) -> T:
    unknown = values.keys() - {field.name for field in fields(kind)}
    if unknown:
        raise FailedPrecondition(
            f"the session was written by another version: {kind.__name__} has unknown {sorted(unknown)}",
            reason="RECORD_VERSION",
        )
    return kind(**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
