"""An asyncio client of GenerationService.

    async with Client("127.0.0.1:50050") as client:
        async for event in client.generate(text="Once upon a time", max_tokens=64):
            if isinstance(event, Chunk):
                print(event.text, end="")

Keyword arguments have the names of the fields of GenerateRequest; errors are those of specdec.core.errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import grpc.aio

from protos import common_pb2, generation_pb2, generation_pb2_grpc
from protos.generation_pb2 import Started
from specdec.core.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable
from specdec.edge.channel import open_channel
from specdec.edge.errors import from_rpc_error
from specdec.edge.received import Event, Ledger, Received
from specdec.edge.tls import Tls

INFO_DEADLINE = 5.0  # seconds
GENERATE_DEADLINE = 3600.0  # seconds
PATIENCE = 30.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two attempts to resume


class GenerateFields(TypedDict, total=False):
    """One key per field of GenerateRequest (contract.md, sampling parameters); absent or None: unset.

    chat: messages as {"role": ..., "content": ...}."""

    session_id: str | None
    received_tokens: int | None
    text: str | None
    token_ids: Sequence[int] | None
    chat: Sequence[Mapping[str, str]] | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    n: int | None
    logprobs: int | None
    num_draft_tokens: int | None
    drafter: str | None
    verification: str | None
    grammar: str | None
    json_schema: str | None
    regex: str | None
    best_of: int | None
    prompt_logprobs: int | None
    beam_width: int | None


class Client:
    """One channel to one coordinator at a time; calls may run side by side. Use as `async with`.

    A generation whose connection is lost goes on by itself: the turn is resumed after the last token that the caller
    has, at the same coordinator or the next, so every token comes once and in order. A call of which nothing has come
    yet is not repeated: its Unavailable is the caller's to weigh, and nothing is lost by it."""

    def __init__(
        self, address: str, *, patience: float = PATIENCE, api_key: str | None = None, tls: Tls | None = None
    ) -> None:
        """address: host:port, or several coordinators of one store, comma separated: where one is lost, the next is
        asked. patience: seconds without a token for which a lost generation is resumed again and again, 0: never.
        api_key: as `specdec key` printed it. tls: `Tls()` believes the authorities of the system, None: in clear."""
        self.address = address
        self._patience = patience
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._tls = tls
        self._jitter = random.Random()

    async def __aenter__(self) -> Self:
        self._channels = [open_channel(address, tls=self._tls) for address in self.address.split(",")]
        self._stubs = [generation_pb2_grpc.GenerationServiceStub(channel) for channel in self._channels]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    @property
    def _stub(self) -> Any:
        """Of the coordinator that is asked next."""
        return self._stubs[0]

    async def info(self, *, deadline: float = INFO_DEADLINE) -> generation_pb2.ServiceInfo:
        """deadline in seconds. Raises SpecdecError."""
        try:
            info: generation_pb2.ServiceInfo = await self._stub.Info(
                common_pb2.InfoRequest(), timeout=deadline, metadata=self._metadata
            )
            return info
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def generate(
        self, *, deadline: float = GENERATE_DEADLINE, **fields: Unpack[GenerateFields]
    ) -> AsyncGenerator[Event]:
        """Started, Chunks and Complete, per choice. Leaving the loop early cancels the call, and with it the
        work on every replica (at once inside `contextlib.aclosing`, else when the generator is collected).

        deadline: seconds for the whole generation. Raises InvalidArgument for a value that the wire cannot
        carry, and whatever SpecdecError the coordinator answers."""
        request = build_request(**fields)
        until = asyncio.get_running_loop().time() + deadline
        before = 0 if request.WhichOneof("prompt") else request.received_tokens
        ledger = Ledger(max(1, request.n), before)
        try:
            async with aclosing(self._attempt(request, until)) as events:
                async for event in events:
                    yield ledger.take(event)
            return
        except Unavailable:
            if not (self._patience and ledger.resumable):
                raise
        for choice in ledger.unfinished():
            async with aclosing(self._resumed(ledger, choice, until)) as events:
                async for event in events:
                    yield event

    async def _resumed(self, ledger: Ledger, choice: Received, until: float) -> AsyncGenerator[Event]:
        """The rest of one choice, by as many calls as it takes."""
        clock = asyncio.get_running_loop().time
        failures, had, last = 0, choice.tokens, clock()
        while not choice.ended:
            try:
                async with aclosing(self._attempt(choice.resumption(), until)) as events:
                    async for event in events:
                        if isinstance(event, Started):
                            continue
                        event.index = choice.index
                        yield ledger.take(event)
            except Unavailable as error:
                if choice.tokens > had:
                    failures, had, last = 0, choice.tokens, clock()
                if clock() - last > self._patience:
                    raise
                pause = min(FIRST_PAUSE * 2.0**failures, LONGEST_PAUSE) * (0.5 + self._jitter.random() / 2)
                full = isinstance(error, ResourceExhausted) and len(self._stubs) == 1
                await asyncio.sleep(error.retry_after if full else pause)
                failures += 1

    async def _attempt(self, request: generation_pb2.GenerateRequest, until: float) -> AsyncGenerator[Event]:
        """One call. until: by the loop's clock."""
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("the generation's deadline is over")
        stub = self._stub
        call = stub.Generate(request, timeout=left, metadata=self._metadata)
        try:
            # Not `async for`: a call that is left half-way would hold its own iterator, which holds it and its socket.
            while (response := await call.read()) is not grpc.aio.EOF:
                event = response.WhichOneof("event")
                if event is not None:
                    yield getattr(response, event)
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error)
            if isinstance(failure, Unavailable) and stub is self._stub:  # by many at once, but left once
                self._stubs.append(self._stubs.pop(0))
            raise failure from None
        finally:
            call.cancel()


def build_request(**fields: Unpack[GenerateFields]) -> generation_pb2.GenerateRequest:
    """Raises InvalidArgument naming the field whose value the wire cannot carry, and for a second prompt."""
    prompts = [name for name in ("text", "token_ids", "chat") if fields.get(name) is not None]
    if len(prompts) > 1:
        first, second, *_ = prompts
        raise InvalidArgument(second, fields.get(second), f"give {first} or {second}, not both")
    request = generation_pb2.GenerateRequest()
    for name, value in fields.items():
        if value is None:
            continue
        try:
            _set(request, name, value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(name, value, str(error)) from None
    return request


def _set(request: generation_pb2.GenerateRequest, name: str, value: Any) -> None:
    field = request.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise ValueError("GenerateRequest has no such field")
    if isinstance(value, bool) and field.type != field.TYPE_BOOL:
        raise TypeError("true and false are no numbers or names")
    if name == "token_ids":
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(value)
    elif name == "chat":
        messages = [generation_pb2.ChatMessage(**message) for message in value]
        request.chat.CopyFrom(generation_pb2.Chat(messages=messages))
    elif name == "logit_bias":
        request.logit_bias.update(value)
    elif field.is_repeated:
        if isinstance(value, str):
            raise TypeError("give a list of strings")
        getattr(request, name).extend(value)
    else:
        setattr(request, name, value)
