"""An asyncio client of GenerationService.

    async with Client("127.0.0.1:50050") as client:
        async for event in client.generate(text="Once upon a time", max_tokens=64):
            if isinstance(event, Chunk):
                print(event.text, end="")

Keyword arguments have the names of the fields of GenerateRequest; errors are those of specdec.core.errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import grpc.aio

from protos import common_pb2, generation_pb2, generation_pb2_grpc
from protos.generation_pb2 import Chunk, Complete, Started
from specdec.core.errors import InvalidArgument
from specdec.edge.channel import open_channel
from specdec.edge.errors import from_rpc_error

Event = Started | Chunk | Complete
INFO_DEADLINE = 5.0  # seconds
GENERATE_DEADLINE = 3600.0  # seconds


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
    """One channel to one coordinator; calls may run side by side. Use as `async with`."""

    def __init__(self, address: str) -> None:
        """address: host:port."""
        self.address = address

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self.address)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def info(self, *, deadline: float = INFO_DEADLINE) -> generation_pb2.ServiceInfo:
        """deadline in seconds. Raises SpecdecError."""
        try:
            info: generation_pb2.ServiceInfo = await self._stub.Info(common_pb2.InfoRequest(), timeout=deadline)
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
        async with aclosing(self._attempt(build_request(**fields), deadline)) as events:
            async for event in events:
                yield event

    async def _attempt(self, request: generation_pb2.GenerateRequest, deadline: float) -> AsyncGenerator[Event]:
        """One call. What follows a lost connection (session_id + received_tokens) belongs to `generate`."""
        call = self._stub.Generate(request, timeout=deadline)
        try:
            async for response in call:
                event = response.WhichOneof("event")
                if event is not None:
                    yield getattr(response, event)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
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
