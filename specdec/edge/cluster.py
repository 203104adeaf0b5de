"""A whole cluster on this machine: coordinator, drafters and verifiers as real processes on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.core.errors import SpecdecError
from specdec.edge.channel import open_channel
from specdec.edge.client import Client
from specdec.edge.cores import Cores, disjoint, openmp_environment, usable_cores
from specdec.edge.draft_entries import NGRAM, DraftEntries
from specdec.edge.process import ChildProcess

HOST = "127.0.0.1"
POLL = 0.1  # seconds between two looks at a process that starts
HEALTH_DEADLINE = 1.0
PATIENCE = 15.0  # seconds for the coordinator to find its replicas, once they serve
STOP_GRACE = 5.0  # seconds from SIGTERM to SIGKILL

T = TypeVar("T")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """target: a model folder, as `python -m specdec.lm.prepare` prints it. draft: what each drafter process serves.
    drafters, verifiers: processes. dtype: of the target; draft_dtype: of draft models, None: the draft service's
    default. head_ids, tli: as its flags. port, metrics_port: of the coordinator, 0: any free one. device None: the
    services' own choice. threads: of each model on CPU, None: one per core that its process may use. tune_seconds: as
    the target service's flag, None: its default. kv_store: URL of what verifiers share keys and values through, None:
    nothing."""

    target: str
    draft: DraftEntries = NGRAM
    drafters: int = 1
    verifiers: int = 1
    store: str = "memory://"
    kv_store: str | None = None
    dtype: str = "float32"
    draft_dtype: str | None = None
    head_ids: str | None = None
    tli: bool = False
    device: str | None = None
    threads: int | None = None
    tune_seconds: float | None = None
    port: int = 0
    metrics_port: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    process: ChildProcess
    address: str
    metrics_url: str


class Cluster:
    """`async with Cluster(...) as cluster`: inside, every process serves; on the way out, by whatever way,
    every process is gone. Entering raises ProcessFailed if one ends or if no verifier is usable.

    log_folder: one file per process. progress: gets a line whenever something begins to serve."""

    def __init__(self, spec: ClusterSpec, log_folder: Path, progress: Progress) -> None:
        self.spec = spec
        self._progress = progress
        self._log_folder = log_folder

    @property
    def address(self) -> str:
        """Of the coordinator."""
        return self._coordinator.address

    @property
    def members(self) -> list[Member]:
        return [*self._replicas, self._coordinator]

    async def __aenter__(self) -> Self:
        self._replicas, self._coordinator = _members(self.spec, self._log_folder)
        started: list[Member] = []
        try:
            for member in self.members:
                await member.process.start()
                started.append(member)
            await self.guard(self._ready())
        except BaseException:
            await _stop(started)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _stop(self.members)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. A process that ends first cancels it: then ProcessFailed is raised."""
        main = asyncio.create_task(work)
        ends = [asyncio.create_task(m.process.run_to_its_end()) for m in self.members]
        try:
            await asyncio.wait([main, *ends], return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                if end.done():
                    await end
            return await main
        finally:
            for task in (main, *ends):
                task.cancel()
            await asyncio.gather(main, *ends, return_exceptions=True)

    async def _ready(self) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        waiting = list(self._replicas)
        while waiting:
            await asyncio.sleep(POLL)
            for member in [m for m in waiting if await _serves(m.address)]:
                waiting.remove(member)
                self._progress(f"{member.process.name} serves on {member.address} ({clock() - begun:.1f} s)")
        await self._coordinator_ready(clock() + PATIENCE)
        self._progress(f"coordinator serves on {self.address} ({clock() - begun:.1f} s)")

    async def _coordinator_ready(self, until: float) -> None:
        """Returns when the coordinator serves and has found every replica. No verifier raises ProcessFailed;
        anything else that is missing is worth a warning."""
        clock = asyncio.get_running_loop().time
        serves, missing = False, ""
        async with Client(self.address) as client:
            while clock() < until and (missing or not serves):
                await asyncio.sleep(POLL)
                serves = await _serves(self.address)
                missing = await self._missing(client) if serves else ""
        if not serves:
            raise self._coordinator.process.failure("the coordinator is not ready: no verifier, or no store")
        if missing:
            self._progress(f"warning: {missing}; see {self._coordinator.process.log_file}")

    async def _missing(self, client: Client) -> str:
        try:
            info = await client.info()
        except SpecdecError as error:
            return f"the coordinator does not say what it found: {error}"
        verifiers, drafters = self.spec.verifiers, self.spec.drafters
        if info.ready_verifiers >= verifiers and info.ready_drafters >= drafters:
            return ""
        found = f"{info.ready_verifiers} of {verifiers} verifiers, {info.ready_drafters} of {drafters} drafters"
        return f"the coordinator can use {found}. {info.speculation_disabled_reason}".rstrip(" .")


async def _serves(address: str) -> bool:
    # A channel of its own for each look: a kept one would back off further and further while a model loads.
    async with open_channel(address) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_DEADLINE)
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def _stop(members: list[Member]) -> None:
    """The coordinator first, so that generations end by its word and not by the loss of their replicas. When
    cancelled, all at once."""
    coordinator = [m for m in members if m.process.name == "coordinator"]
    try:
        for group in (coordinator, members):
            await asyncio.gather(*(m.process.stop(STOP_GRACE) for m in group))
    finally:
        await asyncio.gather(*(m.process.stop(0.0) for m in members))


def _members(spec: ClusterSpec, log_folder: Path) -> tuple[list[Member], Member]:
    """Replicas and coordinator, not started yet."""
    ports = iter(free_ports(2 * (spec.drafters + spec.verifiers + 1)))
    all_cores = usable_cores()

    def member(name: str, module: str, cores: Cores, *arguments: str, port: int = 0, metrics_port: int = 0) -> Member:
        # Both are drawn even if unused: no two members may come by the same.
        free, free_metrics = next(ports), next(ports)
        port, metrics_port = port or free, metrics_port or free_metrics
        network = ("--host", HOST, "--port", str(port), "--metrics-port", str(metrics_port))
        process = ChildProcess(
            name,
            module,
            (*network, *arguments),
            log_file=log_folder / f"{name}.log",
            cores=cores,
            # By the environment and not by a flag: everyone may read another's flags, and a URL may hold a
            # password.
            environment={
                **openmp_environment(spec.threads or len(cores)),
                "SESSION_STORE_URL": spec.store,
                **({"KV_STORE_URL": spec.kv_store} if spec.kv_store else {}),
            },
        )
        return Member(process, f"{HOST}:{port}", f"http://{HOST}:{metrics_port}/metrics")

    # Drafts without weights need no torch, so such a drafter has no threads that could stand in anyone's way.
    draft_cores = disjoint(all_cores, spec.drafters) if spec.draft.has_weights else [all_cores] * spec.drafters
    verifiers = [
        member(f"verifier-{i}", "target_service", cores, *_target_arguments(spec, cores))
        for i, cores in enumerate(disjoint(all_cores, spec.verifiers))
    ]
    drafters = [
        member(f"drafter-{i}", "draft_service", cores, *_draft_arguments(spec, cores))
        for i, cores in enumerate(draft_cores)
    ]
    coordinator = member(
        "coordinator",
        "coordinator",
        all_cores,
        *("--model", spec.target),
        *("--target-addresses", ",".join(m.address for m in verifiers)),
        *("--draft-addresses", ",".join(m.address for m in drafters)),
        port=spec.port,
        metrics_port=spec.metrics_port,
    )
    return [*verifiers, *drafters], coordinator


def _target_arguments(spec: ClusterSpec, cores: Cores) -> list[str]:
    return [
        *("--model", spec.target, "--dtype", spec.dtype, "--threads", str(spec.threads or len(cores)), *_device(spec)),
        *(("--tune-seconds", str(spec.tune_seconds)) if spec.tune_seconds is not None else ()),
    ]


def _draft_arguments(spec: ClusterSpec, cores: Cores) -> list[str]:
    drafters = ("--drafters", ",".join(spec.draft.entries))
    if not spec.draft.has_weights:
        return [*drafters, "--model", spec.target, "--threads", "1"]
    settings = {
        "--num-layers": spec.draft.num_layers,
        "--dtype": spec.draft_dtype,
        "--head-ids": spec.head_ids,
        "--tli": "true" if spec.tli else None,
    }
    return [
        *(*drafters, "--target-model", spec.target),
        *(part for flag, value in settings.items() if value is not None for part in (flag, str(value))),
        *("--threads", str(spec.threads or len(cores)), *_device(spec)),
    ]


def _device(spec: ClusterSpec) -> list[str]:
    return ["--device", spec.device] if spec.device is not None else []


def free_ports(count: int) -> list[int]:
    """Free a moment ago; all held at once, so no two are the same."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
