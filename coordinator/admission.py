"""Turns a GenerateRequest into what is served, or refuses it by name. Every field is looked at here and
nowhere else: a field without a rule is refused, never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

from coordinator.parameter_ranges import RANGES
from coordinator.session import ChatMessage
from coordinator.tokenizer import TextCodec
from coordinator.turn import Turn
from coordinator.turn_request import TURN_FIELDS, Limits, check_ids, fit, number_of, turn_of
from protos.generation_pb2 import GenerateRequest
from specdec.core.errors import InvalidArgument
from specdec.core.randomness import choice_seed
from specdec.core.tree import Ids

NOT_THERE_YET = ("grammar", "json_schema", "regex", "best_of", "prompt_logprobs", "beam_width")
PROMPT_FIELDS = ("text", "token_ids", "chat")
SESSION_FIELDS = ("session_id", "received_tokens")
_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

Kind = Literal["text", "token_ids", "chat", "resume"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """session_id "": a new session. received_tokens: for a resume, the output tokens that the caller has; for
    a new turn, to how many the last answer is truncated (None: not at all).

    prompt_ids: uint32; the whole prompt of a new session, or what a text or token_ids turn appends to its
    session; empty for a resume, and for a chat turn of a session (TextCodec.next_turn_ids needs its record).
    messages: of a chat, as sent. turns: one per choice, empty for a resume. Where the session's length
    counts, `fit` comes later."""

    kind: Kind
    session_id: str
    received_tokens: int | None
    prompt_ids: Ids
    messages: tuple[ChatMessage, ...]
    turns: tuple[Turn, ...]


def admit(request: GenerateRequest, codec: TextCodec, limits: Limits, new_seed: Callable[[], int]) -> Admitted:
    """`new_seed` gives 64 random bits, for a turn without a seed. Encodes the prompt: keep it off the event
    loop. Raises InvalidArgument naming the field, its value and the remedy."""
    _refuse_unknown(request)
    _refuse_set(request, NOT_THERE_YET, "not there yet: leave unset")
    kind = _kind(request)
    received = number_of(request, "received_tokens", RANGES["received_tokens"], None)
    empty: Ids = np.empty(0, dtype=np.uint32)
    if kind == "resume":
        _refuse_set(request, TURN_FIELDS, "a resume goes on with the turn's own parameters: leave unset")
        return Admitted(kind, request.session_id, received, empty, (), ())
    turn = turn_of(request, codec, limits, new_seed)
    messages = _messages(request) if kind == "chat" else ()
    prompt_ids = empty if messages and request.session_id else _prompt_ids(request, codec, messages)
    if not request.session_id:
        turn = fit(turn, len(prompt_ids), limits.max_context)
    choices = number_of(request, "n", RANGES["n"], 1)
    if choices > 1 and request.session_id:
        raise InvalidArgument("n", choices, "a session has one answer per turn: leave n or session_id unset")
    turns = tuple(replace(turn, seed=choice_seed(turn.seed, i)) for i in range(choices))
    return Admitted(kind, request.session_id, received, prompt_ids, messages, turns)


def _kind(request: GenerateRequest) -> Kind:
    if request.session_id and not _SESSION_ID.fullmatch(request.session_id):
        raise InvalidArgument("session_id", request.session_id, "give an id that `started` gave you")
    prompt: Literal["text", "token_ids", "chat"] | None = request.WhichOneof("prompt")
    resumes = request.HasField("received_tokens")
    if resumes and not request.session_id:
        raise InvalidArgument("received_tokens", request.received_tokens, "give its session_id too")
    if prompt is None and not resumes:
        remedy = "give text, token_ids or chat; to resume a session, give session_id and received_tokens"
        raise InvalidArgument("prompt", None, remedy)
    return prompt or "resume"


def _messages(request: GenerateRequest) -> tuple[ChatMessage, ...]:
    messages = tuple(ChatMessage(m.role, m.content) for m in request.chat.messages)
    if not messages:
        raise InvalidArgument("chat", (), "give at least one message")
    for i, message in enumerate(messages):
        if not message.role:
            raise InvalidArgument("chat", f"message {i}", "has no role")
    return messages


def _prompt_ids(request: GenerateRequest, codec: TextCodec, messages: Sequence[ChatMessage]) -> Ids:
    field = request.WhichOneof("prompt")
    ids: Sequence[int]
    if messages:
        ids = codec.chat_prompt_ids(messages)
    elif field == "token_ids":
        ids = request.token_ids.ids
        check_ids("token_ids", ids, codec.vocab_size)
    elif request.session_id:
        ids = codec.encode_continuation(request.text)
    else:
        ids = codec.encode(request.text, add_bos=True) if request.text else ()
    if not ids:
        raise InvalidArgument(field, "", "holds no token: give at least one")
    return np.array(ids, dtype=np.uint32)


def _refuse_set(request: GenerateRequest, fields: Iterable[str], remedy: str) -> None:
    given = {field.name: value for field, value in request.ListFields()}
    wrong = {name: given[name] for name in fields if name in given}
    if wrong:
        raise InvalidArgument(", ".join(wrong), ", ".join(str(v)[:40] for v in wrong.values()), remedy)


def _refuse_unknown(request: GenerateRequest) -> None:
    known = {*SESSION_FIELDS, *PROMPT_FIELDS, *TURN_FIELDS, *NOT_THERE_YET}
    names = [field.name for field, _ in request.ListFields() if field.name not in known]
    numbers = [f"field {unknown.field_number}" for unknown in UnknownFieldSet(request)]  # type: ignore[attr-defined]
    if names or numbers:
        wrong = ", ".join([*names, *numbers])
        raise InvalidArgument(wrong, "set", "this server does not know it: leave it unset")
