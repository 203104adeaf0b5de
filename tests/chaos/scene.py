"""Two coordinators, two drafters and three verifiers as processes, over a real Redis, on a tiny model; a proxy before
every replica and before Redis. Whoever dies can be started again at the same address."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from specdec.core.errors import SpecdecError
from specdec.edge.client import Client
from specdec.edge.cluster import free_ports
from specdec.edge.cores import usable_cores
from specdec.edge.process import ChildProcess
from tests.chaos.liar import Deceit, lying
from tests.coordinator.store.proxy import Proxy, proxied
from tests.metrics import page, total
from tests.redis_server import RedisProcess

VERIFIERS, DRAFTERS, COORDINATORS = 3, 2, 2
REPLICATED = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
PATIENCE = 90.0  # seconds for a process to serve again


@dataclass
class Member:
    """port: its own; address: where others find it, before or behind a proxy; liar: port of one that stands before it
    where the proxy is told to go there."""

    process: ChildProcess
    port: int
    metrics_port: int
    address: str = ""
    proxy: Proxy | None = None
    liar: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        return self.process.name

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def start_again(self) -> None:
        """Once it is gone."""
        await self.process.stop(grace=30.0)
        await self.process.start()

    def gauge(self, name: str) -> float:
        """The sum of a metric's series; 0 where it does not answer."""
        return total(page(f"http://127.0.0.1:{self.metrics_port}/metrics"), name)


class Scene:
    """`async with Scene(model folder, log folder)`: inside, everything serves."""

    def __init__(self, model: Path, logs: Path) -> None:
        self._model = model
        self._logs = logs
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._exits as exits:
            self.redis = exits.enter_context(RedisProcess(*REPLICATED))
            self.redis_proxy = await exits.enter_async_context(proxied(self.redis.port))
            store = f"redis://127.0.0.1:{self.redis_proxy.port}/0"
            ports = iter(free_ports(2 * (VERIFIERS + DRAFTERS + COORDINATORS)))
            model = ("--model", str(self._model))

            def member(name: str, module: str, *flags: str) -> Member:
                port, metrics = next(ports), next(ports)
                network = ("--host", "127.0.0.1", "--port", str(port), "--metrics-port", str(metrics))
                process = ChildProcess(
                    name,
                    module,
                    (*network, *model, *flags),
                    log_file=self._logs / f"{name}.log",
                    cores=usable_cores(),
                    environment={"OMP_NUM_THREADS": "1"},
                )
                return Member(process, port, metrics, f"127.0.0.1:{port}")

            target = ("--threads", "1", "--tune-seconds", "0", "--kv-store-url", store, "--drain-grace", "5")
            self.verifiers = [member(f"verifier-{i}", "target_service", *target) for i in range(VERIFIERS)]
            draft = ("--drafters", "suffix,lm", "--num-layers", "2", "--dtype", "float32", "--threads", "1")
            self.drafters = [
                member(f"drafter-{i}", "draft_service", *draft, "--drain-grace", "2") for i in range(DRAFTERS)
            ]
            self.deceit = Deceit()
            for replica in (*self.verifiers, *self.drafters):
                replica.proxy = await exits.enter_async_context(proxied(replica.port))
                replica.liar = await exits.enter_async_context(lying(replica.port, self.deceit))
                replica.address = f"127.0.0.1:{replica.proxy.port}"
            addresses = (
                *("--target-addresses", ",".join(m.address for m in self.verifiers)),
                *("--draft-addresses", ",".join(m.address for m in self.drafters)),
                *("--session-store-url", store, "--store-deadline", "5", "--session-lease", "5"),
                *("--failover-timeout", "20", "--drain-grace", "0.2"),
            )
            self.coordinators = [member(f"coordinator-{i}", "coordinator", *addresses) for i in range(COORDINATORS)]
            for one in self.members:
                await one.process.start()
                exits.push_async_callback(one.process.stop, 0.0)
            await self.healthy()
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    @property
    def members(self) -> list[Member]:
        return [*self.verifiers, *self.drafters, *self.coordinators]

    def client(self, first: int) -> Client:
        """That asks coordinator `first` before the others."""
        order = [*self.coordinators[first:], *self.coordinators[:first]]
        return Client(",".join(m.address for m in order))

    async def serving(self, members: Sequence[Member]) -> list[Member]:
        """Those with an open stream."""
        found = await asyncio.gather(*(asyncio.to_thread(m.gauge, "specdec_sessions") for m in members))
        return [m for m, streams in zip(members, found, strict=True) if streams]

    async def healthy(self) -> None:
        """Returns once every coordinator has found every replica."""
        async with asyncio.timeout(PATIENCE):
            for coordinator in self.coordinators:
                while not await self._complete(coordinator):  # noqa: ASYNC110 (the state of other processes)
                    await asyncio.sleep(0.1)

    async def _complete(self, coordinator: Member) -> bool:
        async with Client(coordinator.address) as client:
            try:
                info = await client.info()
            except SpecdecError:
                return False
            return info.ready_verifiers == VERIFIERS and info.ready_drafters == DRAFTERS

    async def fail_over(self, lost: float) -> None:
        """Redis dies `lost` seconds after its replica has heard from it for the last time, and that takes its place."""
        old = self.redis
        following = (*REPLICATED, "--replicaof", "127.0.0.1", str(old.port))
        new = await asyncio.to_thread(self._exits.enter_context, RedisProcess(*following))
        async with asyncio.timeout(PATIENCE):
            while new.admin.info("replication")["master_link_status"] != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        new.pause()
        await asyncio.sleep(lost)
        old.kill()
        new.resume()
        await asyncio.to_thread(new.promote)
        self.redis, self.redis_proxy.behind = new, new.port
        self.redis_proxy.cut()

    async def left_behind(self, within: float = 20.0) -> dict[str, float]:
        """What is still held so many seconds after all is over, {} if nothing is: streams, KV in use, keys that would
        never go."""
        clock = asyncio.get_running_loop().time
        until = clock() + within
        while (held := await asyncio.to_thread(self._held)) and clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        return held

    def memory(self) -> dict[str, int]:
        """Resident bytes of every process."""
        page_size = os.sysconf("SC_PAGE_SIZE")
        return {m.name: page_size * int(Path(f"/proc/{m.pid}/statm").read_text().split()[1]) for m in self.members}

    def descriptors(self) -> dict[str, int]:
        """Open files and sockets of every process."""
        return {m.name: len([*Path(f"/proc/{m.pid}/fd").iterdir()]) for m in self.members}

    def _held(self) -> dict[str, float]:
        wanted = [(m, "specdec_sessions") for m in (*self.verifiers, *self.drafters)]
        wanted += [(m, "specdec_kv_used_tokens") for m in self.verifiers]
        wanted += [(m, "specdec_active_streams") for m in self.coordinators]
        held = {f"{m.name} {name}": m.gauge(name) for m, name in wanted}
        keys = list(self.redis.admin.scan_iter("*"))
        held["keys without a time to live"] = float(sum(self.redis.admin.pttl(key) == -1 for key in keys))
        return {name: value for name, value in held.items() if value}
