"""A verifier of the simulation: a queue and forwards, one event for each batch.

Who shares a forward, how prompts are cut into pieces and how long a forward waits for company is decided by the
verifier's own code (`target_service.schedule`, `target_service.company`), on the simulation's clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from benchmarks.autoscale.pods import Clock, Pod
from benchmarks.autoscale.sessions import Session
from benchmarks.autoscale.times import Forwards, Times
from specdec.core.step_time import most_rows
from specdec.lm.network import BLOCK
from target_service.company import Company
from target_service.schedule import COMPANY, LEAST_CHUNK, Schedule, Work, default_target
from target_service.step_time import StepTimes

WHOLE = 65  # rows of a whole verification: the service's default max_nodes, and the root


class Verifier:
    """answered: who is told of sessions whose message was served. all_waits: of all verifiers together."""

    def __init__(
        self,
        pod: Pod,
        times: Times,
        clock: Clock,
        kv_tokens: int,
        answered: Callable[[list[Session]], None],
        all_waits: array[float],
    ) -> None:
        self.pod, self.kv_total = pod, kv_tokens
        self.kv_used = 0
        self._clock, self._answered, self._all_waits = clock, answered, all_waits
        self._forwards = Forwards(times.target)
        self._company = Company(lambda: clock.now)
        self._schedule = Schedule(times.budget, WHOLE, StepTimes(times.target), clock=lambda: clock.now)
        self._step_target = default_target(self._schedule.times)
        self._company_until = -1.0
        self._budget = times.budget
        self._stepped = 0.0
        self._computing = False
        self._asked = 0  # a number for each look at the queue, so that a later one makes an earlier one void

    def arrive(self, sessions: Sequence[Session]) -> None:
        now = self._clock.now
        stepped = inf if self._computing else self._stepped
        for session in sessions:
            session.arrived = now
            session.pending = session.context - session.held + session.k
            self._company.came(session, session.pending, stepped)
            self.pod.queue.append(session)
        if not self._computing:
            self._gather()

    def leave(self, session: Session) -> None:
        self._company.gone(session)
        self.pod.sessions.discard(session)
        self.kv_used -= session.kv
        session.kv = session.held = 0
        session.verifier = None

    def _gather(self) -> None:
        """Begins a forward, or looks again when company should have come."""
        queue, running = self.pod.queue, self.pod.running
        if not queue and not running:
            return
        if not running:
            held = sum(session.context for session in queue) / len(queue)
            rows = [session.pending for session in queue]
            seconds = self._company.patience(rows, self._forwards.table, held, self._stepped)
            if seconds > 0:
                self._asked += 1
                asked = self._asked
                self._clock.at(self._clock.now + seconds, partial(self._look, asked))
                return
        self._begin()

    def _look(self, asked: int) -> None:
        if asked == self._asked and not self._computing:
            self._gather()

    def _begin(self) -> None:
        pod, now = self.pod, self._clock.now
        fresh = len(pod.running)
        pod.running += self._admitted()
        jobs = pod.running
        total, given = self._shares(jobs, fresh)
        held = sum(session.held * rows for session, rows in zip(jobs, given, strict=True)) / total
        seconds = self._forwards.seconds(total, held)
        for session in jobs[fresh:]:
            wait = now - session.arrived
            pod.waits.add(wait)
            self._all_waits.append(wait)
            session.verified(wait, seconds, len(jobs))
        self._computing = True
        pod.forwards += 1
        pod.busy_seconds += seconds
        self._asked += 1
        self._clock.at(now + seconds, partial(self._end, given))

    def _shares(self, jobs: list[Session], fresh: int) -> tuple[int, list[int]]:
        """Rows of the next forward: all together, and of each. The first `fresh` had some in the one before."""
        pending = [session.pending for session in jobs]
        total = sum(pending)
        if total <= self._budget and not fresh and max(pending) <= WHOLE:
            return total, pending
        prompts = [i for i, rows in enumerate(pending) if i < fresh or rows > WHOLE]
        short = total - sum(pending[i] for i in prompts)
        if short + LEAST_CHUNK > self._budget:
            works = [Work(session.pending, session.held, i < fresh) for i, session in enumerate(jobs)]
            pending = self._schedule.share(works)
            return sum(pending), pending
        left = min(self._budget - short, self._allowance(jobs, prompts, short))
        for i in prompts:
            pending[i] = min(pending[i], left)
            left -= pending[i]
        return sum(pending), pending

    def _allowance(self, jobs: list[Session], prompts: list[int], short: int) -> int:
        """Rows for all prompts together, as `Schedule` has it: beside short work a forward keeps to its target."""
        now = self._clock.now
        if short:
            self._company_until = now + COMPANY
        elif now >= self._company_until:
            return self._budget
        line = self._forwards.line(sum(jobs[i].held for i in prompts) / len(prompts))
        return max(LEAST_CHUNK, most_rows(self._budget, lambda rows: line(short + rows) <= self._step_target))

    def _admitted(self) -> list[Session]:
        """Those of the queue for whose keys and values there is room, at the cost of sessions in no forward if need be.
        Once somebody has to wait for room, the others may only use what they have."""
        queue = self.pod.queue
        needs = [-(-(session.context + session.k) // BLOCK) * BLOCK - session.kv for session in queue]
        if self.kv_used + sum(needs) <= self.kv_total:
            self.pod.queue = []
            for session, needed in zip(queue, needs, strict=True):
                session.kv += needed
            self.kv_used += sum(needs)
            return queue
        admitted: list[Session] = []
        for session in queue:
            needed = -(-(session.context + session.k) // BLOCK) * BLOCK - session.kv
            overtakes = len(admitted) < queue.index(session)
            if needed > 0 and (overtakes or not self._room(needed, {session, *admitted, *self.pod.running})):
                continue
            session.kv += needed
            self.kv_used += needed
            admitted.append(session)
        self.pod.queue = [session for session in queue if session not in set(admitted)]
        return admitted

    def _room(self, needed: int, in_use: set[Session]) -> bool:
        """Makes it, from those whose last forward is longest ago: the ends of their contexts, which they compute again,
        as the prefix cache keeps the rest."""
        victims = sorted((s for s in self.pod.sessions if s.kv and s not in in_use), key=lambda s: s.used)
        missing = self.kv_used + needed - self.kv_total
        if missing > sum(session.kv for session in victims):
            return False
        for session in victims:
            if missing <= 0:
                break
            taken = min(session.kv, -(-missing // BLOCK) * BLOCK)
            missing -= taken
            session.kv -= taken
            self.kv_used -= taken
            session.held = min(session.held, session.kv)
            session.pending = session.context - session.held + session.k
        return True

    def _end(self, given: list[int]) -> None:
        self._computing, self._stepped = False, self._clock.now
        done: list[Session] = []
        left: list[Session] = []
        for session, rows in zip(self.pod.running, given, strict=True):
            session.pending -= rows
            session.held += rows
            (left if session.pending else done).append(session)
        self.pod.running = left
        for session in done:
            session.used = self._clock.now
            self._company.left(session)
        self._answered(done)
        if not self._computing:
            self._gather()
