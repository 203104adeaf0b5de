"""How long a forward waits for sessions that are about to be back.

A session that was answered drafts, accepts and comes again a few milliseconds later. Where the next forward begins at
once, those that it leaves behind wait for all of it, and so do the others after them: sessions fall into groups that
take turns, and weights are read once for each group. A short wait lets them share one forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from specdec.core.step_time import StepTimeTable

FIRST = 0.25  # guess at an absence, in plain forwards
LEARN = 0.2  # weight of an absence in the running mean
LATE = 2.0  # times its usual absence after which a session is not waited for any more
SOON = 0.25  # of its usual absence, in which one that is over its time is expected


@dataclass(slots=True)
class _Guest:
    """away: seconds that it usually stays away, None: nobody knows; left: when it was answered, None: it is being
    served; rows: of its last request; missed: it was waited for in vain since it left."""

    away: float | None = None
    left: float | None = None
    rows: int = 1
    missed: bool = False


class Company:
    """The sessions of one engine, by any key of theirs. Not locked: all calls from one thread.

    An absence during which a forward ran tells little: on a machine that they share, whoever is to come back has to
    wait for the forward's threads. `stepped`, where it is asked for, is when the last forward ended, infinity while
    one runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guests: dict[Hashable, _Guest] = {}

    def came(self, key: Hashable, rows: int, stepped: float) -> None:
        """A request of `rows` rows is there."""
        guest = self._guests.setdefault(key, _Guest())
        guest.rows = rows
        if guest.left is not None:
            _learn(guest, self._clock() - guest.left, disturbed=stepped > guest.left)
        guest.left, guest.missed = None, False

    def left(self, key: Hashable) -> None:
        """Its request was answered."""
        if key in self._guests:
            self._guests[key].left = self._clock()

    def gone(self, key: Hashable) -> None:
        """It will not come again."""
        self._guests.pop(key, None)

    def patience(self, rows: Sequence[int], table: StepTimeTable, context: float, stepped: float) -> float:
        """Seconds to wait for others before a forward of these requests, 0: none. Worth it is what makes the sum of
        all their waits smallest: those that are there wait for the others, those that come too late for a forward
        wait for its end."""
        here, mine = len(rows), sum(rows)
        alone = table.estimate(mine, context)
        best, wait, more = 0.0, 0.0, 0
        coming = self._coming(FIRST * table.estimate(1, context), stepped)
        for others, (after, its) in enumerate(coming, start=1):
            more += its
            if after >= alone:
                break
            if others & (others - 1) and others < len(coming):
                continue  # a few sizes will do: this is asked whenever somebody comes
            together = after + table.estimate(mine + more, context)
            theirs = alone + table.estimate(more, context)
            cost = here * (together - alone) + others * (together - theirs)
            if cost < best:
                best, wait = cost, after
        return wait

    def _coming(self, guess: float, stepped: float) -> list[tuple[float, int]]:
        """(seconds until it should be back, its rows) of the sessions that can be expected, soonest first."""
        now, coming = self._clock(), []
        for guest in self._guests.values():
            if guest.left is None or guest.missed:
                continue
            away = guest.away or guess
            if now < guest.left + LATE * away:
                due = guest.left + away
                if now >= due:
                    due = min(guest.left + LATE * away, now + SOON * away)
                coming.append((due - now, guest.rows))
            elif stepped <= guest.left:
                guest.away, guest.missed = LATE * away, True
        return sorted(coming)


def _learn(guest: _Guest, away: float, disturbed: bool) -> None:
    if guest.away is None:
        guest.away = None if disturbed else away
    elif disturbed:
        guest.away = min(guest.away, away)
    elif not guest.missed:
        guest.away += LEARN * (away - guest.away)
