"""A whole coordinator in this process, on real gRPC, over scripted or real replicas."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from opentelemetry.sdk.trace.export import SpanExporter

from coordinator import drafting
from coordinator.compatibility import check_for, fitting
from coordinator.config import CoordinatorConfig
from coordinator.keys import Keys
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
from tests.fakes.replicas import ScriptedDrafter, ScriptedTarget
from tests.fakes.scripted import Scripted
from tests.fakes.tables import Table
from tests.metrics import total

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
    """address, server: the coordinator's."""

    client: Client
    address: str
    server: GrpcServer
    servicer: GenerationServicer
    store: SessionStore
    telemetry: Telemetry
    targets: Pool
    drafters: Pool
    codec: TextCodec
    servers: dict[Scripted, GrpcServer]
    exits: AsyncExitStack

    async def generate(self, **fields: Any) -> Answer:
        """The one choice of a request, to its end."""
        answers = await self.choices(**fields)
        (answer,) = answers.values()
        return answer

    async def choices(self, **fields: Any) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        offsets: dict[int, int] = {}
        async for event in self.client.generate(**fields):
            if isinstance(event, Started):
                answers[event.index], offsets[event.index] = Answer(event), _skipped(fields)
            elif isinstance(event, Chunk):
                assert event.offset == offsets[event.index], "a gap or an overlap"
                offsets[event.index] += len(event.tokens)
                answers[event.index].chunks.append(event)
            else:
                answers[event.index].complete = event
        return answers

    @property
    def active(self) -> int:
        """Generate calls in progress."""
        return self.servicer._active

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the series that carry these labels, as /metrics shows them now; 0 where there is none."""
        return total(self.telemetry.scrape(), name, **labels)

    async def kill(self, replica: Scripted) -> None:
        """Ends its server and every stream on it."""
        await self.servers[replica].stop()

    async def revive(self, replica: Scripted) -> None:
        """A killed replica on its old port."""
        port = self.servers[replica].port
        self.servers[replica] = await self.exits.enter_async_context(serve_replica(replica, port))


def _skipped(fields: Mapping[str, Any]) -> int:
    prompts = ("text", "token_ids", "chat")
    return 0 if any(fields.get(name) is not None for name in prompts) else fields.get("received_tokens") or 0


@asynccontextmanager
async def serve_replica(replica: Scripted, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[GrpcServer]:
    name, register = next(entry for kind, entry in REGISTER.items() if isinstance(replica, kind))
    async with GrpcServer({name: partial(register, replica)}, host=host, port=port) as server:
        await server.set_serving(True)
        yield server


def scripted_target(table: Table, folder: Path, **fields: Any) -> ScriptedTarget:
    return ScriptedTarget(table, TextCodec.load(str(folder)).tokenizer_hash, "target", **fields)


def scripted_drafter(table: Table, folder: Path, **fields: Any) -> ScriptedDrafter:
    return ScriptedDrafter(table, TextCodec.load(str(folder)).tokenizer_hash, "draft", **fields)


@asynccontextmanager
async def stack(
    folder: Path,
    targets: Sequence[Scripted | str],
    drafters: Sequence[Scripted | str] = (),
    *,
    span_exporter: SpanExporter | None = None,
    store: SessionStore | None = None,
    patience: float = 10.0,
    **settings: Any,
) -> AsyncIterator[Stack]:
    """Replicas are served here if scripted, or given as host:port. settings: of CoordinatorConfig. patience: seconds
    that a drafter is waited for beyond its usual time, so that a busy machine makes none late."""
    settings = {"draft_timeout": 10.0, **settings}
    async with AsyncExitStack() as exits:
        exits.enter_context(patch.object(drafting, "GRACE", patience))
        servers: dict[Scripted, GrpcServer] = {}

        async def address(replica: Scripted | str) -> str:
            if isinstance(replica, str):
                return replica
            servers[replica] = await exits.enter_async_context(serve_replica(replica))
            return f"127.0.0.1:{servers[replica].port}"

        config = CoordinatorConfig(
            model=str(folder),
            target_addresses=tuple([await address(r) for r in targets]),
            draft_addresses=tuple([await address(r) for r in drafters]),
            **settings,
        )
        config.validate()
        telemetry = exits.enter_context(Telemetry.start("coordinator", env={}, span_exporter=span_exporter))
        yield await _started(config, exits, servers, telemetry, store)
    violations = [violation for replica in servers for violation in replica.violations]
    assert not violations, violations


async def _started(
    config: CoordinatorConfig,
    exits: AsyncExitStack,
    servers: dict[Scripted, GrpcServer],
    telemetry: Telemetry,
    store: SessionStore | None,
) -> Stack:
    """As coordinator/__main__.py wires it, with pools that look often."""
    metrics = CoordinatorMetrics(telemetry)
    codec = TextCodec.load(config.model)
    if store is None:
        store = open_store(
            config.session_store_url, ttl=config.session_ttl, lease=config.session_lease, deadline=config.store_deadline
        )
        exits.push_async_callback(store.close)
    pool = partial(Pool, metrics=metrics, refresh=0.2, rng=random.Random(0))
    targets = pool("target", config.target_addresses, check_for("target", codec))
    drafters = pool("draft", config.draft_addresses, check_for("draft", codec), narrow=fitting(targets.infos))
    await exits.enter_async_context(targets)
    await exits.enter_async_context(drafters)
    keys = Keys.read(config.api_keys)
    servicer = GenerationServicer(config, codec, store, targets, drafters, telemetry, metrics, keys)
    register = partial(generation_pb2_grpc.add_GenerationServiceServicer_to_server, servicer)
    server = await exits.enter_async_context(
        GrpcServer({"specdec.v1.GenerationService": register}, host="127.0.0.1", port=0)
    )
    where = f"127.0.0.1:{server.port}"
    client = await exits.enter_async_context(Client(where, patience=0.0))
    return Stack(client, where, server, servicer, store, telemetry, targets, drafters, codec, servers, exits)


async def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Waits for something that happens in another task or process."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  what is waited for has no event of its own
            await asyncio.sleep(0.005)
