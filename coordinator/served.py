"""What the drafters of the pool can do, all ready replicas together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.pool import Pool
from coordinator.replica import Replica
from specdec.edge.messages import DrafterInfo, ReplicaInfo

UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class ServedDrafter:
    """Bounded by the widest window and the largest answer that any replica has. tree: its draft tokens are nodes;
    shares: some replica computes on the processor of a verifier; infos: what each replica tells of it."""

    name: str
    nodes: int
    window: int
    tree: bool
    shares: bool
    infos: tuple[DrafterInfo, ...] = ()

    @property
    def blind(self) -> bool:
        """It drafts without hidden states."""
        return not any(info.feature_layers for info in self.infos)

    @staticmethod
    def of(name: str, infos: Sequence[ReplicaInfo], shares: bool) -> ServedDrafter:
        described = tuple(info.drafter_info(name) for info in infos)
        return ServedDrafter(
            name,
            nodes=max(info.max_nodes for info in infos),
            window=max(info.max_context or UNLIMITED for info in infos),
            tree=described[0].tree,
            shares=shares,
            infos=described,
        )


class ServedDrafters:
    """Asked in every cycle of every session, and worked out anew only where a replica came, went or told of itself."""

    def __init__(self, drafters: Pool, targets: Pool) -> None:
        self._drafters = drafters
        self._targets = targets
        self._seen: list[ReplicaInfo] = []
        self._served: dict[str, ServedDrafter] = {}

    def now(self) -> dict[str, ServedDrafter]:
        """By name, the operator's order kept."""
        drafters, targets = self._drafters.ready(), self._targets.ready()
        seen = [replica.info for replica in (*drafters, *targets)]
        if len(seen) != len(self._seen) or any(a is not b for a, b in zip(seen, self._seen, strict=True)):
            self._seen, self._served = seen, _served(drafters, targets)
        return self._served


def _served(drafters: Sequence[Replica], targets: Sequence[Replica]) -> dict[str, ServedDrafter]:
    serving: dict[str, list[ReplicaInfo]] = {}
    for replica in drafters:
        for name in replica.drafters:
            serving.setdefault(name, []).append(replica.info)
    sharing = drafters_on_a_targets_cpu(drafters, targets)
    return {name: ServedDrafter.of(name, infos, name in sharing) for name, infos in serving.items()}


def drafters_on_a_targets_cpu(drafters: Sequence[Replica], targets: Sequence[Replica]) -> set[str]:
    """Names of drafters of which some replica computes on the processor of a verifier."""
    machines = {replica.cpu for replica in targets} - {""}
    return {name for replica in drafters if replica.cpu in machines for name in replica.drafters}
