"""Hidden states of the target on their way to the drafters of one session: opaque bytes, and no more than it takes."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.compatibility import misfit
from coordinator.pool import Pool
from specdec.core.features import FEATURE_WINDOW, NO_FEATURES, FeatureRows, VerifiedFeatures
from specdec.core.verification import VerifyForm
from specdec.edge.messages import ReplicaInfo

KEPT_ROWS = 2 * FEATURE_WINDOW  # for a drafter that is not asked in every cycle


class SessionFeatures:
    """drafter: the only one that the session may use, None: any of `pool`; drafting: whether it drafts at all.

    rows: of the positions before the context's last one, as far back as they are kept."""

    def __init__(self, pool: Pool, drafter: str | None, *, drafting: bool) -> None:
        self.rows = NO_FEATURES
        self._pool = pool
        self._drafter = drafter
        self._drafting = drafting
        self._layers: tuple[int, ...] = ()

    def layers_for(self, target: ReplicaInfo) -> tuple[int, ...]:
        """Layers of `target` to ask for: what any drafter at hand reads, ascending. They only ever grow, for a drafter
        that is away may come back, and every change costs a window."""
        if not self._drafting:
            return ()
        wanted = set(self._layers)
        for replica in self._pool.ready(drafter=self._drafter):
            names = replica.info.drafters if self._drafter is None else (self._drafter,)
            for drafter in map(replica.info.drafter_info, names):
                if drafter.feature_layers and misfit(drafter, target) is None:
                    wanted.update(drafter.feature_layers)
        self._layers = tuple(sorted(wanted))
        return self._layers

    def add(self, verified: VerifiedFeatures | None, nodes: Sequence[int], form: VerifyForm) -> None:
        """What came with a verification, once it is known which nodes were accepted (as in `Acceptance`)."""
        if verified is not None:
            self.rows = self.rows.joined(verified.accepted(nodes, form)).tail(KEPT_ROWS)

    def unsent(self, layers: Sequence[int], position: int | None) -> FeatureRows | None:
        """For a drafter that reads `layers` and has been sent everything before `position`; None: it has nothing, and
        gets the last FEATURE_WINDOW rows. None where there is nothing for it."""
        if not layers or not set(layers) <= set(self._layers):
            return None
        rows = self.rows.tail(FEATURE_WINDOW) if position is None else self.rows.since(position)
        return rows.layers(layers, self._layers) if rows.rows else None
