"""A whole coordinator in this process, on real gRPC, over scripted or real replicas."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace.export import SpanExporter

from coordinator.compatibility import check_for
from coordinator.config import CoordinatorConfig
from coordinator.pool import Pool
from coordinator.service import GenerationServicer
from coordinator.store import open_store
from coordinator.store.protocol import SessionStore
from coordinator.tokenizer import TextCodec
from protos import draft_pb2_grpc, generation_pb2_grpc, target_pb2_grpc
from protos.generation_pb2 import Chunk, Complete, Started
from specdec.edge.client import Client
from specdec.edge.server import GrpcServer
from specdec.edge.telemetry import CoordinatorMetrics, Telemetry
from tests.fakes.replicas import Scripted, ScriptedDrafter, ScriptedTarget
from tests.fakes.tables import Table

REGISTER = {
    ScriptedTarget: ("specdec.v1.TargetService", target_pb2_grpc.add_TargetServiceServicer_to_server),
    ScriptedDrafter: ("specdec.v1.DraftService", draft_pb2_grpc.add_DraftServiceServicer_to_server),
}


@dataclass
class Answer:
    """One choice of a Generate call, gathered."""

    started: Started
    chunks: list[Chunk] = field(default_factory=list)
    complete: Complete | None = None

    @property
    def ids(self) -> list[int]:
        return [token.id for chunk in self.chunks for token in chunk.tokens]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def stats(self) -> Any:
        assert self.complete is not None, "the turn did not end"
        return self.complete.draft_stats


@dataclass
class Stack:
    client: Client
    servicer: GenerationServicer
    store: SessionStore
    telemetry: Telemetry
    targets: Pool
    drafters: Pool
    codec: TextCodec

    async def generate(self, **fields: Any) -> Answer:
        """The one choice of a request, to its end."""
        answers = await self.choices(**fields)
        (answer,) = answers.values()
        return answer

    async def choices(self, **fields: Any) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        async for event in self.client.generate(**fields):
            if isinstance(event, Started):
                answers[event.index] = Answer(event)
            elif isinstance(event, Chunk):
                assert event.offset == len(answers[event.index].ids) + _skipped(fields), "a gap or an overlap"
                answers[event.index].chunks.append(event)
            else:
                answers[event.index].complete = event
        return answers


def _skipped(fields: Mapping[str, Any]) -> int:
    prompts = ("text", "token_ids", "chat")
    return 0 if any(fields.get(name) is not None for name in prompts) else fields.get("received_tokens") or 0


@asynccontextmanager
async def serve_replica(replica: Scripted, port: int = 0) -> AsyncIterator[GrpcServer]:
    name, register = REGISTER[type(replica)]
    async with GrpcServer({name: partial(register, replica)}, host="127.0.0.1", port=port) as server:
        await server.set_serving(True)
        yield server


def scripted_target(table: Table, folder: Path, **fields: Any) -> ScriptedTarget:
    return ScriptedTarget(table, TextCodec.load(str(folder)).tokenizer_hash, "target", **fields)


def scripted_drafter(table: Table, folder: Path, **fields: Any) -> ScriptedDrafter:
    extra = {name: fields.pop(name) for name in ("propose", "reported", "parents", "support") if name in fields}
    drafter = ScriptedDrafter(table, TextCodec.load(str(folder)).tokenizer_hash, "draft", **fields)
    for name, value in extra.items():
        setattr(drafter, name, value)
    return drafter


@asynccontextmanager
async def stack(
    folder: Path,
    targets: Sequence[Scripted | str],
    drafters: Sequence[Scripted | str] = (),
    *,
    span_exporter: SpanExporter | None = None,
    store: SessionStore | None = None,
    **settings: Any,
) -> AsyncIterator[Stack]:
    """Replicas are served here if scripted, or given as host:port. settings: of CoordinatorConfig."""
    async with AsyncExitStack() as exits:

        async def address(replica: Scripted | str) -> str:
            if isinstance(replica, str):
                return replica
            server = await exits.enter_async_context(serve_replica(replica))
            return f"127.0.0.1:{server.port}"

        config = CoordinatorConfig(
            model=str(folder),
            target_addresses=tuple([await address(r) for r in targets]),
            draft_addresses=tuple([await address(r) for r in drafters]),
            **settings,
        )
        config.validate()
        telemetry = exits.enter_context(Telemetry.start("coordinator", env={}, span_exporter=span_exporter))
        metrics = CoordinatorMetrics(telemetry)
        codec = TextCodec.load(str(folder))
        own = store or open_store(
            config.session_store_url, ttl=config.session_ttl, lease=config.session_lease, deadline=config.store_deadline
        )
        pools = [
            await exits.enter_async_context(
                Pool(role, addresses, check_for(role, codec), metrics, refresh=0.2, rng=random.Random(0))
            )
            for role, addresses in (("target", config.target_addresses), ("draft", config.draft_addresses))
        ]
        servicer = GenerationServicer(config, codec, own, pools[0], pools[1], telemetry, metrics)
        register = partial(generation_pb2_grpc.add_GenerationServiceServicer_to_server, servicer)
        server = await exits.enter_async_context(
            GrpcServer({"specdec.v1.GenerationService": register}, host="127.0.0.1", port=0)
        )
        client = await exits.enter_async_context(Client(f"127.0.0.1:{server.port}"))
        yield Stack(client, servicer, own, telemetry, pools[0], pools[1], codec)
        await own.close()


async def until(condition: Any, timeout: float = 10.0) -> None:
    """Waits for something that happens in another task or process."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)
