"""A drafter of the simulation, a language model's: a queue, and forwards that give each session in them one token. Who
comes while some are under way joins when the first of them is answered."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.autoscale.pods import Clock, Pod
from benchmarks.autoscale.sessions import Session
from benchmarks.autoscale.times import Forwards, Times

SHORT = 8  # pending rows of a job that its next token does not have to wait for
ROWS = 256  # of a forward at most
IN_TIME = 0.8  # of what a coordinator waits for a draft, that a drafter may use


@dataclass(slots=True, eq=False)
class _Chain:
    """pending: rows before its first token; left: tokens yet to draft."""

    session: Session
    pending: int
    left: int
    deadline: float
    tokens: int = 0


class Drafter:
    """drafted: who is told of sessions whose draft is there, `Session.k` being the tokens that it has."""

    def __init__(
        self,
        pod: Pod,
        times: Times,
        clock: Clock,
        drafted: Callable[[list[Session]], None],
        all_waits: array[float],
    ) -> None:
        self.pod = pod
        self._clock, self._drafted, self._all_waits = clock, drafted, all_waits
        self._forwards = Forwards(times.draft)
        self._chains: list[_Chain] = []
        self._computing = False
        self.batch = 1  # sessions in the last forward

    def arrive(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            session.asked = self._clock.now
            self.pod.queue.append(session)
        if not self._computing:
            self._begin()

    def leave(self, session: Session) -> None:
        self.pod.sessions.discard(session)
        session.drafter, session.draft_held = None, 0

    def _begin(self) -> None:
        self._take()
        late: list[_Chain] = []
        while self._chains:
            steps, seconds = self._planned()
            if steps:
                self._computing = True
                self.batch = len(self._chains)
                self.pod.forwards += steps
                self.pod.busy_seconds += seconds
                self._clock.at(self._clock.now + seconds, partial(self._end, steps))
                break
            late.append(min(self._chains, key=lambda one: one.deadline))
            self._chains.remove(late[-1])
        self._tell(late)

    def _take(self) -> None:
        now = self._clock.now
        for session in self.pod.queue:
            session.draft_waited = now - session.asked
            self.pod.waits.add(session.draft_waited)
            self._all_waits.append(session.draft_waited)
            pending = max(1, session.context - session.draft_held)
            deadline = session.asked + IN_TIME * session.draft_budget
            self._chains.append(_Chain(session, pending, session.k, deadline))
        self.pod.queue = []

    def _planned(self) -> tuple[int, float]:
        """Forwards until somebody is answered, and their seconds; 0 where somebody has no time for another, who then
        is answered with what there is."""
        chains = self._chains
        context = sum(chain.session.context for chain in chains) / len(chains)
        rows = sum(chain.pending for chain in chains)
        first = self._forwards.seconds(min(rows, ROWS), context)
        left = min(chain.deadline for chain in chains) - self._clock.now
        if left < first:
            return 0, 0.0
        if rows > len(chains) * SHORT or rows > ROWS:
            return 1, first
        step = self._forwards.seconds(len(chains), context)
        steps = min(min(chain.left for chain in chains), 1 + int((left - first) / step))
        return steps, first + (steps - 1) * step

    def _end(self, steps: int) -> None:
        self._computing = False
        room = ROWS
        for chain in sorted(self._chains, key=lambda one: one.pending):
            rows = min(chain.pending, room)
            room -= rows
            chain.pending -= rows
            if not chain.pending:
                chain.tokens += steps
                chain.left -= steps
                chain.pending = 1
        done = [one for one in self._chains if one.left <= 0]
        self._chains = [one for one in self._chains if one.left > 0]
        self._tell(done)
        self._begin()

    def _tell(self, done: list[_Chain]) -> None:
        self.pod.running = [one.session for one in self._chains]
        for one in done:
            one.session.k = one.tokens
            if not one.tokens:  # what it computed of the context is there when it is asked again
                one.session.draft_held = one.session.context - one.pending
        if done:
            self._drafted([one.session for one in done])
