"""What sessions that ended leave to those that begin."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.turn import Turn
from specdec.core.planner import Planner, handed_on, pays
from specdec.core.source_record import Offer
from specdec.edge.messages import DrafterInfo

TRIED_AGAIN = 16  # one turn in so many lets drafters that do not pay see hidden states all the same
_FEW = 8  # draft tokens by which that is judged


class Experience:
    """By the kind of turn, since greedy, coupled and sampled drafts are accepted differently: what the last one to end
    knew of the sources, the experience with which it began included. Counts and times only, no token of anyone."""

    def __init__(self) -> None:
        self._planners: dict[tuple[bool, str], Planner] = {}
        self._turns = 0

    def of(self, turn: Turn) -> Planner:
        """Where a turn begins."""
        return self._planners.get(_kind(turn), Planner())

    def wants_features(self, planner: Planner, readers: Iterable[DrafterInfo], context: int) -> bool:
        """Whether a turn that begins with `planner` asks for hidden states. They cost every cycle something, so where
        none of the drafters that read them pays, all but a few turns do without."""
        self._turns += 1
        offers = [Offer(reader.name, _FEW, reader.tree) for reader in readers]
        paying = any(pays(planner, offer, context) for offer in offers)
        return paying or not offers or self._turns % TRIED_AGAIN == 0

    def keep(self, turn: Turn, planner: Planner, begun: Planner) -> None:
        """What a turn that began with `begun` has learned, once it has ended."""
        if planner.cycles:
            self._planners[_kind(turn)] = handed_on(planner, begun)


def _kind(turn: Turn) -> tuple[bool, str]:
    return turn.params.greedy, turn.rule
