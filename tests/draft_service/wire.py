"""A DraftService behind a real gRPC server, and a client that speaks as the coordinator does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from draft_service.config import DraftConfig
from draft_service.drafters import Drafter
from draft_service.lane import Lane
from draft_service.service import DraftService
from protos import draft_pb2_grpc
from specdec.core.draft import Draft, DraftKind
from specdec.core.sampling import SamplingParams
from specdec.edge.channel import open_channel
from specdec.edge.draft_codec import decode_draft_reply, encode_draft_request
from specdec.edge.messages import DraftReply, DraftRequest, OpenSession, Refusal
from specdec.edge.server import GrpcServer
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from tests.draft_service.jobs import GREEDY, ids

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2)


class Client:
    """One stream, one session. `ask` sends one message and waits for its reply."""

    def __init__(self, stub: Any, session_id: str, *, vocab_size: int = 1 << 32) -> None:
        self.session_id = session_id
        self.call = stub.Draft()
        self._vocab_size = vocab_size
        self._cycle = 0

    def opening(self, drafter: str = "lm", params: SamplingParams = GREEDY, seed: int = 0, turn_start: int = 0) -> Any:
        return OpenSession(self.session_id, params, seed, turn_start, drafter)

    def request(self, offset: int, token_ids: Sequence[int], k: int = 4, **fields: Any) -> DraftRequest:
        self._cycle += 1
        return DraftRequest(self._cycle, offset, ids(token_ids), k, **fields)

    async def ask(self, offset: int, token_ids: Sequence[int], k: int = 4, **fields: Any) -> DraftReply:
        request = self.request(offset, token_ids, k, **fields)
        await self.call.write(encode_draft_request(request))
        return self.decode(await self.call.read(), request)

    async def sampled(self, offset: int, token_ids: Sequence[int], k: int = 4, **fields: Any) -> DraftReply:
        return await self.ask(offset, token_ids, k, kind=DraftKind.SAMPLED, support=8, **fields)

    def decode(self, message: Any, request: DraftRequest) -> DraftReply:
        return decode_draft_reply(message, request, vocab_size=self._vocab_size)


class Served:
    """A running replica."""

    def __init__(self, service: DraftService, server: GrpcServer, lanes: dict[str, Lane], stub: Any) -> None:
        self.service = service
        self.server = server
        self.lanes = lanes
        self.stub = stub

    def client(self, session_id: str = "s", **fields: Any) -> Client:
        return Client(self.stub, session_id, **fields)


@asynccontextmanager
async def serving(
    drafters: Mapping[str, Drafter],
    *,
    config: DraftConfig | None = None,
    telemetry: Telemetry | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Served]:
    telemetry = telemetry or Telemetry.start("test", env={"OTEL_SDK_DISABLED": "true"})
    config = config or DraftConfig(model="unused", drafters=tuple(drafters))
    service = DraftService(config, telemetry, ReplicaMetrics(telemetry), replica_id="drafter-0", clock=clock)
    register = partial(draft_pb2_grpc.add_DraftServiceServicer_to_server, service)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            GrpcServer({"specdec.v1.DraftService": register}, host="127.0.0.1", port=0)
        )
        lanes = {}
        for name, drafter in drafters.items():
            lane = Lane(name, drafter, queue_limit=config.queue_limit, clock=clock)
            lanes[name] = await stack.enter_async_context(lane)
        if lanes:
            service.open(lanes)
        channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{server.port}"))
        yield Served(service, server, lanes, draft_pb2_grpc.DraftServiceStub(channel))


def drafted(reply: DraftReply) -> Draft:
    assert isinstance(reply.result, Draft), reply.result
    return reply.result


def refused(reply: DraftReply) -> Refusal:
    assert isinstance(reply.result, Refusal), reply.result
    return reply.result


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (states of other threads, which signal nothing)
            await asyncio.sleep(0.005)
