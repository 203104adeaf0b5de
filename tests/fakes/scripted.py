"""What scripted replicas of both roles share: real gRPC streams, the context rule, laws from a table, faults from a
script. They assert what every replica relies on: offsets that they hold, ids within the vocabulary, positions within
the context."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdec.core.errors import InvalidArgument
from specdec.edge.info_codec import encode_info
from specdec.edge.messages import Load, OpenSession, ReplicaInfo, StaleContext
from tests.fakes.tables import Table
from tests.reference import Law, reference_law

Request = Any  # DraftRequest or VerifyRequest, by role


@dataclass(eq=False)
class Stream:
    """One session's stream as a replica sees it. delivered: contexts at whose end hidden states were sent; rows: those
    that came, by position (`tests.fakes.features`)."""

    opening: OpenSession | None = None
    tokens: list[int] = field(default_factory=list)
    delivered: set[tuple[int, ...]] = field(default_factory=set)
    rows: dict[int, bytes] = field(default_factory=dict)


# Given a request and the honest reply, what to send: another reply, None for silence, or raise to end the stream.
Script = Callable[[Request, Any], Awaitable[Any]]


async def honest(request: Request, reply: Any) -> Any:
    return reply


async def silent(request: Request, reply: Any) -> Any:
    """A replica that hangs."""
    await asyncio.Event().wait()


@dataclass(eq=False)
class Scripted:
    """requests: every message that came, with its session, in order; streams: open now; violations: what a healthy
    coordinator never asks for. script: sees request and honest reply, may lie; wire: the same, on the reply's proto."""

    table: Table
    tokenizer_hash: str
    role: str
    replica_id: str = "scripted"
    script: Script = honest
    wire: Callable[[Any], Any] = lambda message: message
    load: Load = field(default_factory=Load)
    max_context: int = 4096
    max_nodes: int = 64
    info_overrides: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, Request]] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    streams_opened: int = 0
    violations: list[str] = field(default_factory=list)
    _laws: dict[Any, Law] = field(default_factory=dict)

    @property
    def open_streams(self) -> int:
        return len(self.streams)

    def sent(self, session_id: str) -> list[Any]:
        """The messages of one session, in order."""
        return [request for session, request in self.requests if session == session_id]

    def evict(self, held: int) -> None:
        """Forgets all but the first `held` tokens of every session."""
        for stream in self.streams:
            del stream.tokens[held:]

    async def Info(self, request: Any, context: Any) -> Any:
        return encode_info(self.info())

    def info(self) -> ReplicaInfo:
        info = ReplicaInfo(
            role=self.role,
            replica_id=self.replica_id,
            vocab_size=self.table.vocab_size,
            tokenizer_hash=self.tokenizer_hash,
            model_fingerprint=self.table.name,
            model_name=self.table.name,
            dtype="float32",
            max_context=self.max_context,
            max_nodes=self.max_nodes,
            token_budget=1024,
            load=self.load,
        )
        return replace(info, **self.info_overrides)

    async def _stream(
        self, messages: Any, context: Any, decode: Callable[[Any], Any], encode: Callable[[Any], Any]
    ) -> None:
        stream = Stream()
        self.streams.append(stream)
        self.streams_opened += 1
        try:
            async for message in messages:
                request, reply = self._serve(stream, message, decode)
                reply = await self.script(request, reply)
                if reply is not None:
                    await context.write(self.wire(encode(reply)))
        finally:
            self.streams.remove(stream)

    def _serve(self, stream: Stream, message: Any, decode: Callable[[Any], Any]) -> tuple[Any, Any]:
        try:
            request = decode(message)
            stream.opening = request.open or stream.opening
            assert stream.opening is not None, "the first message opens the session"
            self.requests.append((stream.opening.session_id, request))
            return request, self._reply(stream, request)
        except (AssertionError, InvalidArgument) as error:
            self.violations.append(str(error))
            raise

    def _reply(self, stream: Stream, request: Any) -> Any:
        assert len(request.token_ids) or request.offset, "an empty context"
        if request.offset > len(stream.tokens):
            return self._answer(request, StaleContext(len(stream.tokens)), 0)
        stream.tokens[request.offset :] = request.token_ids.tolist()
        return self._answer(request, self._compute(stream, request), len(request.token_ids))

    def _answer(self, request: Any, result: Any, computed: int) -> Any:
        raise NotImplementedError

    def _compute(self, stream: Stream, request: Any) -> Any:
        raise NotImplementedError

    def _law(self, stream: Stream, path: Sequence[int]) -> Law:
        """After the stream's context and the path. Remembered where few tokens decide it: the reference is slow."""
        opening, memory = stream.opening, self.table.memory
        assert opening is not None, "a law needs parameters"
        if memory is None or opening.params.penalised or opening.params.min_tokens:
            return self._reference(opening, [*stream.tokens, *path])
        recent = [*stream.tokens[len(stream.tokens) - memory :], *path]
        key = (opening.params, *recent[len(recent) - memory :])
        if key not in self._laws:
            self._laws[key] = self._reference(opening, [*stream.tokens, *path])
        return self._laws[key]

    def _reference(self, opening: OpenSession, context: list[int]) -> Law:
        return reference_law(self.table.logits(context), context, opening.turn_start, opening.params)
