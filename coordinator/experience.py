"""What sessions that ended leave to those that begin."""

from __future__ import annotations

from coordinator.turn import Turn
from specdec.core.planner import Planner, handed_on


class Experience:
    """By the kind of turn, since greedy, coupled and sampled drafts are accepted differently: what the last one to end
    knew of the sources, the experience with which it began included. Counts and times only, no token of anyone."""

    def __init__(self) -> None:
        self._planners: dict[tuple[bool, str], Planner] = {}

    def of(self, turn: Turn) -> Planner:
        """Where a turn begins."""
        return self._planners.get(_kind(turn), Planner())

    def keep(self, turn: Turn, planner: Planner, begun: Planner) -> None:
        """What a turn that began with `begun` has learned, once it has ended."""
        if planner.cycles:
            self._planners[_kind(turn)] = handed_on(planner, begun)


def _kind(turn: Turn) -> tuple[bool, str]:
    return turn.params.greedy, turn.rule
