"""Inputs against every method of a real cluster, and what came back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from protos import common_pb2, draft_pb2, generation_pb2, target_pb2
from specdec.core.draft import DraftKind
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.core.verification import VerifyForm
from specdec.edge.channel import open_channel
from specdec.edge.draft_codec import encode_draft_request
from specdec.edge.errors import from_rpc_error
from specdec.edge.messages import DraftRequest, OpenSession, VerifyRequest
from specdec.edge.verify_codec import encode_verify_request
from tests.draft_service.jobs import ids
from tests.fuzz.inputs import one

HANG = 20.0  # seconds without an answer
READ = 3  # replies of one call, then it is cancelled
AT_ONCE = 8
OPENING = OpenSession("fuzz", SamplingParams(temperature=0.7, logprobs=2), 1, 3)


@dataclass(frozen=True, slots=True)
class Method:
    """sound: messages that it serves, in this order."""

    path: str
    kind: type[Message]
    sound: tuple[Message, ...]
    streams: bool = False


def _verify(cycle: int, offset: int, tokens: list[int], **fields: Any) -> Message:
    tree = DraftTree.chain(ids([4, 5]))
    return encode_verify_request(VerifyRequest(cycle, offset, ids(tokens), tree, **fields))


def _draft(cycle: int, offset: int, tokens: list[int], **fields: Any) -> Message:
    return encode_draft_request(DraftRequest(cycle, offset, ids(tokens), 3, support=8, **fields))


METHODS: Mapping[str, tuple[Method, ...]] = {
    "coordinator": (
        Method(
            "/specdec.v1.GenerationService/Generate",
            generation_pb2.GenerateRequest,
            (
                generation_pb2.GenerateRequest(
                    token_ids=generation_pb2.TokenIds(ids=[3, 1, 4]), max_tokens=4, temperature=0.5, logit_bias={1: 0.5}
                ),
            ),
        ),
        Method("/specdec.v1.GenerationService/Info", common_pb2.InfoRequest, (common_pb2.InfoRequest(),)),
    ),
    "verifier-0": (
        Method(
            "/specdec.v1.TargetService/Verify",
            target_pb2.VerifyRequest,
            (
                _verify(1, 0, [3, 1, 4, 1], open=OPENING),
                _verify(2, 4, [5], form=VerifyForm.PQ, supports=(ids([4, 7]), ids([5]))),
            ),
            streams=True,
        ),
        Method("/specdec.v1.TargetService/Info", common_pb2.InfoRequest, (common_pb2.InfoRequest(),)),
    ),
    "drafter-0": (
        Method(
            "/specdec.v1.DraftService/Draft",
            draft_pb2.DraftRequest,
            (_draft(1, 0, [3, 1, 4, 1], open=OPENING), _draft(2, 4, [5], kind=DraftKind.SAMPLED)),
            streams=True,
        ),
        Method("/specdec.v1.DraftService/Info", common_pb2.InfoRequest, (common_pb2.InfoRequest(),)),
    ),
}


@dataclass
class Findings:
    """answers: how often each came. faults: what no input may bring about, with the input's number."""

    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


async def campaign(addresses: Mapping[str, str], inputs: int, seed: int = 0) -> Findings:
    """addresses: by the names in METHODS. Input n is a function of seed and n."""
    findings, numbers = Findings(), iter(range(inputs))
    channels = {name: open_channel(address) for name, address in addresses.items()}
    every = [(name, method) for name, methods in METHODS.items() for method in methods]

    async def work() -> None:
        for number in numbers:
            rng = random.Random(f"{seed}/{number}")
            name, method = every[number % len(every)]
            try:
                async with asyncio.timeout(HANG):
                    answer = await _answer(channels[name], method, _messages(method, rng))
            except TimeoutError:
                answer = "hang"
            findings.answers[answer] += 1
            if answer in ("hang", "untyped") or answer.endswith("INTERNAL"):
                findings.faults.append(f"input {number} to {method.path}: {answer}")

    try:
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    finally:
        for channel in channels.values():
            await channel.close()
    return findings


def _messages(method: Method, rng: random.Random) -> list[bytes]:
    """The malformed one alone, or where it meets a session that has begun."""
    sound = [message.SerializeToString() for message in method.sound]
    before = rng.randint(0, len(sound) - 1) if method.streams else 0
    target = sound[min(before, len(sound) - 1)]
    return [*sound[:before], one(rng, method.kind, target)]


async def _answer(channel: Any, method: Method, messages: list[bytes]) -> str:
    """ "answered", or the status and its reason; "untyped" for a status without one."""

    async def each() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    call: Any
    if method.streams:
        call = channel.stream_stream(method.path)(each())
    elif method.path.endswith("Info"):
        call = channel.unary_unary(method.path)(messages[0])
    else:
        call = channel.unary_stream(method.path)(messages[0])
    try:
        if method.path.endswith("Info"):
            await call
        else:
            count = 0
            async for _ in call:
                count += 1
                if count == READ:
                    break
    except grpc.aio.AioRpcError as error:
        typed = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
        return f"{error.code().name} {from_rpc_error(error).reason}" if typed else "untyped"
    finally:
        with suppress(asyncio.InvalidStateError):
            call.cancel()
    return "answered"
