"""Hidden states of the target on their way to the drafters of one session: opaque bytes, and no more than it takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from coordinator.compatibility import misfit
from coordinator.served import ServedDrafter, ServedDrafters
from specdec.core.features import FEATURE_WINDOW, NO_FEATURES, FeatureRows, VerifiedFeatures
from specdec.core.verification import VerifyForm
from specdec.edge.messages import ReplicaInfo

KEPT_ROWS = 2 * FEATURE_WINDOW  # for a drafter that is not asked in every cycle


class SessionFeatures:
    """drafter: the only one that the session may use, None: any that is `served`. wanted: whether any are asked for."""

    def __init__(self, served: ServedDrafters, drafter: str | None, *, wanted: bool = True) -> None:
        self._pieces = deque[FeatureRows]()  # that follow on each other, as they came
        self._served = served
        self._drafter = drafter
        self.wanted = wanted
        self._layers: tuple[int, ...] = ()

    def layers_for(self, target: ReplicaInfo) -> tuple[int, ...]:
        """Layers of `target` to ask for: what any drafter at hand reads, ascending. They only ever grow, for a drafter
        that is away may come back, and every change costs a window."""
        if not self.wanted:
            return ()
        infos = [info for reader in self.readers() for info in reader.infos]
        read = [info.feature_layers for info in infos if misfit(info, target) is None]
        self._layers = tuple(sorted(set(self._layers).union(*read)))
        return self._layers

    def readers(self) -> list[ServedDrafter]:
        """Drafters at hand that read hidden states."""
        served = self._served.now().values()
        return [drafter for drafter in served if not drafter.blind and self._drafter in (None, drafter.name)]

    def add(self, verified: VerifiedFeatures | None, nodes: Sequence[int], form: VerifyForm) -> None:
        """What came with a verification, once it is known which nodes were accepted (as in `Acceptance`)."""
        if verified is None:
            return
        piece, pieces = verified.accepted(nodes, form), self._pieces
        if pieces and pieces[-1].end == piece.offset and pieces[-1].row_bytes == piece.row_bytes:
            pieces.append(piece)  # to join all of them in every cycle would copy a quarter of a megabyte
            while piece.end - pieces[0].end >= KEPT_ROWS:
                pieces.popleft()
        else:
            self._pieces = deque([self.rows.joined(piece).tail(KEPT_ROWS)])

    @property
    def rows(self) -> FeatureRows:
        """Of the positions before the context's last one, as far back as they are kept."""
        return self._since(0).tail(KEPT_ROWS)

    @property
    def empty(self) -> bool:
        return not self._pieces

    def _since(self, position: int) -> FeatureRows:
        wanted = [piece for piece in self._pieces if piece.end > position]
        if not wanted:
            return NO_FEATURES
        whole = FeatureRows(wanted[0].offset, wanted[-1].end - wanted[0].offset, b"".join(p.data for p in wanted))
        return whole.since(position)

    def unsent(self, layers: Sequence[int], position: int | None) -> FeatureRows | None:
        """For a drafter that reads `layers` and has been sent everything before `position`; None: it has nothing, and
        gets the last FEATURE_WINDOW rows. None where there is nothing for it."""
        if not layers or not set(layers) <= set(self._layers):
            return None
        end = self._pieces[-1].end if self._pieces else 0
        rows = self._since(max(0, end - FEATURE_WINDOW) if position is None else position)
        return rows.layers(layers, self._layers) if rows.rows else None
