"""A TargetService behind a real gRPC server, and a client that speaks as the coordinator does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import target_pb2_grpc
from specdec.core.sampling import SamplingParams
from specdec.core.tree import EMPTY_TREE, DraftTree
from specdec.core.verification import Verification
from specdec.edge.batcher import MicroBatcher
from specdec.edge.channel import open_channel
from specdec.edge.messages import OpenSession, VerifyReply, VerifyRequest
from specdec.edge.server import GrpcServer
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.edge.verify_codec import decode_verify_reply, encode_verify_request
from specdec.lm.loading import LoadedModel
from target_service.config import TargetConfig
from target_service.engine import Engine
from target_service.health import watch_health
from target_service.service import Batcher, TargetService
from target_service.sharing import KVSharing
from tests.target_service.conftest import VOCAB
from tests.target_service.driver import GREEDY, Drafter, ids, walk


class Client:
    """One stream, one session. `ask` sends one message and waits for its reply. feature_bytes: of a row of the hidden
    states that the session's opening asks for."""

    def __init__(self, stub: Any, session_id: str, vocab_size: int) -> None:
        self.session_id = session_id
        self.call = stub.Verify()
        self.feature_bytes = 0
        self._vocab_size = vocab_size
        self._cycle = 0

    def opening(self, params: SamplingParams = GREEDY, seed: int = 0, turn_start: int = 1) -> OpenSession:
        return OpenSession(self.session_id, params, seed, turn_start)

    def request(
        self, offset: int, token_ids: Sequence[int], tree: DraftTree = EMPTY_TREE, **fields: Any
    ) -> VerifyRequest:
        self._cycle += 1
        return VerifyRequest(self._cycle, offset, ids(token_ids), tree, **fields)

    async def send(self, request: VerifyRequest) -> None:
        await self.call.write(encode_verify_request(request))

    async def ask(
        self, offset: int, token_ids: Sequence[int], tree: DraftTree = EMPTY_TREE, **fields: Any
    ) -> VerifyReply:
        request = self.request(offset, token_ids, tree, **fields)
        await self.send(request)
        message = await self.call.read()
        return decode_verify_reply(
            message, request, vocab_size=self._vocab_size, logprobs=None, feature_bytes=self.feature_bytes
        )


@dataclass
class Served:
    """A running replica."""

    service: TargetService
    server: GrpcServer
    engine: Engine
    batcher: Batcher
    stub: Any

    @property
    def port(self) -> int:
        return self.server.port

    def client(self, session_id: str = "s") -> Client:
        return Client(self.stub, session_id, self.engine.vocab_size)


@asynccontextmanager
async def serving(
    loaded: LoadedModel,
    engine: Engine,
    *,
    config: TargetConfig | None = None,
    telemetry: Telemetry | None = None,
    ready: bool = True,
    sharing: KVSharing | None = None,
    stuck_after: float = 60.0,
) -> AsyncIterator[Served]:
    telemetry = telemetry or Telemetry.start("test", env={"OTEL_SDK_DISABLED": "true"})
    config = config or TargetConfig(model="unused")
    service = TargetService(config, telemetry, ReplicaMetrics(telemetry), replica_id="verifier-0")
    register = partial(target_pb2_grpc.add_TargetServiceServicer_to_server, service)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        server = await enter(GrpcServer({"specdec.v1.TargetService": register}, host="127.0.0.1", port=0))
        batcher: Batcher = await enter(MicroBatcher(engine.step, queue_limit=config.queue_limit))
        if ready:
            service.open(loaded, engine, batcher, sharing)
            await enter(
                watch_health(
                    server,
                    engine,
                    batcher,
                    draining=lambda: service.draining,
                    stuck_after=stuck_after,
                    interval=0.02,
                )
            )
        channel = await enter(open_channel(f"127.0.0.1:{server.port}"))
        yield Served(service, server, engine, batcher, target_pb2_grpc.TargetServiceStub(channel))


def prompt(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, n)]


def verified(reply: VerifyReply) -> Verification:
    assert isinstance(reply.result, Verification), reply.result
    return reply.result


async def converse(client: Client, given: list[int], length: int, draft: Drafter, **opening: Any) -> list[int]:
    """A whole turn over the wire, as the y-form emits it."""
    context, offset = list(given), 0
    opened = client.opening(turn_start=len(given), **opening)
    while len(context) < len(given) + length:
        tree = draft(context)
        reply = await client.ask(offset, context[offset:], tree, open=None if offset else opened)
        offset = len(context)
        context += walk(tree, verified(reply))
    return context[len(given) : len(given) + length]


async def health(port: int | str, service: str = "specdec.v1.TargetService") -> int:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


async def until_health(port: int | str, status: int, service: str = "specdec.v1.TargetService") -> None:
    async with asyncio.timeout(20):
        while await health(port, service) != status:  # noqa: ASYNC110 (the state of another process)
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (states of other threads, which signal nothing)
            await asyncio.sleep(0.005)
