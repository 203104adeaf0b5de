"""The replicas of one role: found by name, checked on each connect, chosen by load, set aside when they fail."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Sequence
from types import TracebackType

from coordinator.replica import Connect, Replica, State
from specdec.core.errors import ReplicaFault, Unavailable
from specdec.edge.channel import open_channel
from specdec.edge.messages import ReplicaInfo
from specdec.edge.telemetry import CoordinatorMetrics

log = logging.getLogger(__name__)

REFRESH = 2.0  # seconds between two looks at the name service and at each replica's Info

Check = Callable[[ReplicaInfo], str | None]
Narrow = Callable[[ReplicaInfo], ReplicaInfo]


class Pool:
    """`async with Pool(...)` keeps the list current. `check` says why a replica cannot be used, or None; before that,
    `narrow` leaves out of its Info what cannot.

    addresses: "host:port", each host resolved again every REFRESH seconds, so that a headless name follows its pool.
    """

    def __init__(
        self,
        role: str,
        addresses: Sequence[str],
        check: Check,
        metrics: CoordinatorMetrics,
        *,
        narrow: Narrow = lambda info: info,
        connect: Connect = open_channel,
        refresh: float = REFRESH,
        rng: random.Random | None = None,
    ) -> None:
        self.role = role
        self.replicas: dict[str, Replica] = {}
        self._addresses = tuple(addresses)
        self._check = check
        self._narrow = narrow
        self._connect = connect
        self._metrics = metrics
        self._refresh = refresh
        self._rng = rng or random.Random()
        self._names: dict[str, set[str]] = {}
        self._leaving: list[Replica] = []
        self._mismatches: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Pool:
        await self._look()
        self._task = asyncio.create_task(self._watch(), name=f"pool-{self.role}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None, "a pool is left once"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in [*self.replicas.values(), *self._leaving]))

    def ready(self, *, fingerprint: str | None = None, drafter: str | None = None) -> list[Replica]:
        """Replicas that can take a session now; of one model, or that serve one drafter, if asked."""
        return [
            replica
            for replica in self.replicas.values()
            if replica.usable(asyncio.get_running_loop().time())
            and (fingerprint is None or replica.info.model_fingerprint == fingerprint)
            and (drafter is None or drafter in replica.info.drafters)
        ]

    def members(self) -> list[Replica]:
        """Replicas that fit and answer, those set aside or draining included: any of them may serve a session yet."""
        return [replica for replica in self.replicas.values() if replica.state is State.READY]

    def serves(self, fingerprint: str) -> bool:
        """Whether a member has this model and does not leave; one that is only set aside comes back."""
        return any(r.info.model_fingerprint == fingerprint and not r.draining for r in self.members())

    def infos(self) -> list[ReplicaInfo]:
        """Of its members."""
        return [replica.info for replica in self.members()]

    def drafters_seen(self) -> list[str]:
        """Drafter names of every replica that ever answered, the operator's order kept."""
        return [name for replica in self.replicas.values() for name in replica.drafters]

    def pick(
        self,
        *,
        fingerprint: str | None = None,
        drafter: str | None = None,
        avoid: frozenset[str] = frozenset(),
    ) -> Replica | None:
        """The replica for a session that goes there now."""
        chosen = self.best(fingerprint=fingerprint, drafter=drafter, avoid=avoid)
        if chosen is not None:
            chosen.taken(asyncio.get_running_loop().time())
        return chosen

    def best(
        self,
        *,
        fingerprint: str | None = None,
        drafter: str | None = None,
        avoid: frozenset[str] = frozenset(),
    ) -> Replica | None:
        """The less loaded of two random ready replicas; one of `avoid` only if there is no other."""
        ready = self.ready(fingerprint=fingerprint, drafter=drafter)
        candidates = [replica for replica in ready if replica.address not in avoid] or ready
        if not candidates:
            return None
        pair = self._rng.sample(candidates, min(2, len(candidates)))
        return min(pair, key=lambda replica: replica.pressure)

    async def wait_ready(self, timeout: float, *, fingerprint: str | None = None) -> None:
        """Returns once a replica is ready; raises Unavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not self.ready(fingerprint=fingerprint):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(
                f"no {self.role} replica is ready among {', '.join(self._addresses) or 'no addresses'}",
                reason=f"NO_{self.role.upper()}",
            ) from None

    def report(self, replica: Replica, fault: ReplicaFault) -> None:
        """A session saw `replica` fail: it is set aside, longer each time, and looked at again after that."""
        pause = replica.quarantine(asyncio.get_running_loop().time())
        if pause is not None:
            log.warning("%s %s set aside for %.1f s: %s", self.role, replica.address, pause, fault)
            self._metrics.quarantines.add(role=self.role, reason=fault.reason)

    def reopened(self, reason: str) -> None:
        """A session that one replica served has gone to another, or to the same anew."""
        self._metrics.reopens.add(role=self.role, reason=reason)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._refresh if self.ready() else min(self._refresh, 0.1))
            await self._look()

    async def _look(self) -> None:
        found = await self._resolve()
        for address in found - self.replicas.keys():
            self.replicas[address] = Replica(address, self.role, self._connect)
        for address in self.replicas.keys() - found:
            replica = self.replicas.pop(address)
            replica.leaving = True  # its sessions move between two cycles, as from one that drains
            self._leaving.append(replica)
        await self._close_left()
        await asyncio.gather(*(self._refresh_one(replica) for replica in list(self.replicas.values())))
        self._metrics.ready_replicas.set(len(self.ready()), role=self.role)
        self._count_excluded()
        if self.ready():
            self._changed.set()

    async def _close_left(self) -> None:
        left = [replica for replica in self._leaving if not replica.inflight]
        self._leaving = [replica for replica in self._leaving if replica.inflight]
        await asyncio.gather(*(replica.close() for replica in left))

    def _count_excluded(self) -> None:
        excluded = [r.mismatch for r in self.replicas.values() if r.state is State.EXCLUDED]
        self._mismatches.update(excluded)
        for reason in self._mismatches:
            self._metrics.excluded_replicas.set(excluded.count(reason), role=self.role, reason=reason)

    async def _refresh_one(self, replica: Replica) -> None:
        before = replica.state
        await replica.refresh(self._check, self._narrow)
        if replica.state is before:
            return
        if replica.state is State.EXCLUDED:
            log.error("%s %s excluded: %s", self.role, replica.address, replica.reason)
        elif replica.state is State.READY:
            log.info("%s %s ready: %s", self.role, replica.address, replica.info.model_name)
        elif before is State.READY:
            log.warning("%s %s lost: %s", self.role, replica.address, replica.reason)

    async def _resolve(self) -> set[str]:
        """The addresses behind the names; a name that fails to resolve keeps what it last gave."""
        loop = asyncio.get_running_loop()
        for address in self._addresses:
            host, _, port = address.rpartition(":")
            try:
                infos = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            except OSError as error:
                log.warning("%s name %s does not resolve: %s", self.role, address, error)
                continue
            # A dual-stack name is one process behind two addresses: one family is enough, IPv4 if it is there.
            family = socket.AF_INET if any(i[0] == socket.AF_INET for i in infos) else socket.AF_INET6
            hosts = {str(sockaddr[0]) for f, _, _, _, sockaddr in infos if f == family}
            self._names[address] = {f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in hosts}
        return {replica for replicas in self._names.values() for replica in replicas}
