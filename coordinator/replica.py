"""One process of a pool, as this coordinator sees it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import grpc

from protos import common_pb2, draft_pb2_grpc, target_pb2_grpc
from specdec.core.errors import ReplicaFault
from specdec.edge.channel import open_channel
from specdec.edge.info_codec import decode_info
from specdec.edge.messages import Load, ReplicaInfo

INFO_DEADLINE = 1.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds in quarantine, doubling

Connect = Callable[[str], grpc.aio.Channel]

STUBS: dict[str, Any] = {"draft": draft_pb2_grpc.DraftServiceStub, "target": target_pb2_grpc.TargetServiceStub}


class State(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    EXCLUDED = "excluded"  # answers, but cannot work with us


class Replica:
    """Holds the one channel to the process. `inflight`: streams of this coordinator that it serves; `leaving`: the name
    service knows it no more."""

    def __init__(self, address: str, role: str, connect: Connect = open_channel) -> None:
        self.address = address
        self.state = State.CONNECTING
        self.reason = "not asked yet"
        self._info: ReplicaInfo | None = None
        self.load = Load()
        self.inflight = 0
        self.leaving = False
        self._pause = FIRST_PAUSE
        self._quarantined_until = 0.0
        self._on_trial = False  # from its quarantine on, until a reply was sound
        self._probed_until = 0.0
        self._channel = connect(address)
        self.stub: Any = STUBS[role](self._channel)

    @property
    def info(self) -> ReplicaInfo:
        assert self._info is not None, f"{self.address} was used before it answered"
        return self._info

    @property
    def drafters(self) -> tuple[str, ...]:
        return self._info.drafters if self._info is not None else ()

    @property
    def cpu(self) -> str:
        """The machine whose processor it computes on, by its address; "" where it has another device, or nobody
        knows."""
        return self.address.rpartition(":")[0] if self.info.config.get("device") == "cpu" else ""

    @property
    def mismatch(self) -> str:
        """What does not fit, as one word: the reason starts with it."""
        return self.reason.partition(":")[0]

    @property
    def pressure(self) -> int:
        """What a new session would wait behind."""
        return self.load.queued + self.load.running + self.inflight

    @property
    def draining(self) -> bool:
        """It wants its sessions to move; until they have, it serves them."""
        return self.load.draining or self.leaving

    def usable(self, now: float) -> bool:
        aside = max(self._quarantined_until, self._probed_until)
        return self.state is State.READY and not self.draining and now >= aside

    def taken(self, now: float) -> None:
        """A session goes there. After a quarantine it is the only one until a reply was sound, or for as long as the
        next quarantine would be: a replica that fails again fails one session, not all."""
        if self._on_trial:
            self._probed_until = now + self._pause

    def quarantine(self, now: float) -> float | None:
        """Sets the replica aside; returns for how many seconds. None where it is already: one death is seen by every
        session, and counts once."""
        if now < self._quarantined_until:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        self._quarantined_until = now + pause
        self._on_trial, self._probed_until = True, 0.0
        return pause

    def forgive(self) -> None:
        """A reply came and was found sound: earlier faults count no more."""
        self._pause = FIRST_PAUSE
        self._on_trial, self._probed_until = False, 0.0

    async def refresh(
        self, check: Callable[[ReplicaInfo], str | None], narrow: Callable[[ReplicaInfo], ReplicaInfo]
    ) -> None:
        """Asks for Info and settles the state by it. narrow: what of it counts."""
        try:
            info = narrow(decode_info(await self.stub.Info(common_pb2.InfoRequest(), timeout=INFO_DEADLINE)))
        except grpc.aio.AioRpcError as error:
            self.state, self.reason = State.CONNECTING, f"{error.code().name}: {error.details()}"
            return
        except ReplicaFault as fault:
            self.state, self.reason = State.EXCLUDED, f"info: {fault}"
            return
        self._info, self.load = info, info.load
        self.reason = check(info) or ""
        self.state = State.EXCLUDED if self.reason else State.READY

    async def close(self) -> None:
        await self._channel.close()
