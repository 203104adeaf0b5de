"""Who may hold keys and values, and whose go when room is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from specdec.core.errors import ResourceExhausted
from specdec.edge.messages import Refusal
from specdec.lm.kv import KVPool
from specdec.lm.network import BLOCK
from target_service.session import TargetSession, VerifyJob

AWAY = 1.0  # seconds without a message after which a session is idle: nothing is lost soon by taking its room
# A session at work that loses its room computes its context again when it comes back. Where sessions need more than
# there is, each would take from the next in every cycle, and hardly anything else be computed: 20 times the rows. So
# who was given room keeps it for KEPT times what its context takes to compute, and who has none takes from those at
# work only TAKEN times that after the last who did.
KEPT, TAKEN = 8.0, 8.0
LEAST, MOST = 0.1, 4.0  # seconds, of both


class Room:
    """Admission to a pool. Room is made for a job as a whole before its first row is computed, so no two jobs can wait
    for each other. Where the pool is full, blocks that only the prefix cache keeps go first, then idle sessions let go
    of theirs, least recently used first. Then those at work that no admitted job uses: whose session grows, takes from
    those that came later, the last first; whose session has none, from those that have had theirs for long enough, the
    longest first. While that is not enough, a job waits, and is refused before its sender gives up. A session that lost
    its blocks finds most of them in the cache, unless they were really needed.

    prefill: seconds to compute so many rows, infinity where nobody knows; clock: in seconds."""

    def __init__(self, pool: KVPool, prefill: Callable[[int], float], clock: Callable[[], float]) -> None:
        self._pool = pool
        self._prefill = prefill
        self._clock = clock
        self._next_taking = -math.inf

    def admit(
        self, waiting: Sequence[VerifyJob], sessions: Collection[TargetSession]
    ) -> tuple[list[VerifyJob], list[tuple[VerifyJob, Refusal]]]:
        """(jobs that have their room, jobs that can or shall have it no more). waiting: oldest first; sessions: all
        open ones.

        Once a job whose session has no room has to wait, others without may only use what is there already: nobody
        overtakes it to the memory. Who is at work goes on, and grows."""
        admitted, refused = [], []
        overtaken = False
        for job in waiting:
            if job.rows > self._pool.capacity:
                message = f"{job.rows} tokens of KV wanted, there is room for {self._pool.capacity} in all"
                refused.append((job, Refusal(ResourceExhausted.reason, message)))
                continue
            session = job.session
            if not session.sequence.allocated:
                session.kept_until = None
            grows = session.kept_until is not None
            if not job.admitted and (grows or not overtaken or not session.sequence.missing(job.rows)):
                job.admitted = self._make_room(job, waiting, sessions, grows)
            if job.admitted:
                admitted.append(job)
            elif self._clock() >= job.until:
                refused.append((job, Refusal(ResourceExhausted.reason, "no room for its keys and values in time")))
            else:
                overtaken |= not grows
        return admitted, refused

    def _make_room(
        self, job: VerifyJob, waiting: Sequence[VerifyJob], sessions: Collection[TargetSession], grows: bool
    ) -> bool:
        """Reserve the rows of the whole job, what the prefix cache has of them included, at the cost of others."""
        sequence, now = job.session.sequence, self._clock()
        sequence.adopt(job.session.context[: job.fresh_from])
        wanted = BLOCK * sequence.missing(job.rows)
        if not grows or wanted > self._pool.kv_free:  # nearly every job of those at work has its room already
            victims = self._victims(job, waiting, sessions, grows, now)
            if victims is None:
                return False
            for victim in victims:
                if wanted <= self._pool.kv_free:
                    break
                victim.sequence.release()
                victim.kept_until = None
        try:
            sequence.reserve(job.rows)
        except ResourceExhausted:  # blocks of victims that others hold too are not free
            return False
        job.found_tokens = sequence.adopted
        if not grows:
            job.session.kept_until = now + self._while_computing(job.rows, KEPT)
        return True

    def _victims(
        self,
        job: VerifyJob,
        waiting: Sequence[VerifyJob],
        sessions: Collection[TargetSession],
        grows: bool,
        now: float,
    ) -> list[TargetSession] | None:
        """Whose room may be taken, in this order, if it comes to that; None: what they have would not do."""
        asking = {other.session for other in waiting}
        in_use = {other.session for other in waiting if other.admitted} | {job.session}
        holders = [s for s in sessions if s not in in_use and s.sequence.allocated]
        idle = {s for s in holders if s not in asking and now - s.last_used > AWAY}
        victims = sorted(idle, key=lambda s: s.last_used)
        wanted = BLOCK * job.session.sequence.missing(job.rows)
        # Each of those at work will want a block soon. Whoever begins leaves it, or has what he took taken from others.
        spare = 0 if grows else BLOCK * sum(s.kept_until is not None for s in sessions if s not in idle)
        if wanted + spare <= self._pool.kv_free + _held(victims):
            return victims
        if not grows and now < self._next_taking:
            return None
        working = [s for s in holders if s not in idle]
        if grows:  # from whoever came after him: the one who came first never has to wait, and comes to his end
            mine = _kept(job.session)
            working = sorted((s for s in working if s.kept_until is None or _kept(s) > mine), key=_kept, reverse=True)
        else:
            working = sorted((s for s in working if _kept(s) <= now), key=_kept)
        if wanted > self._pool.kv_free + _held(victims) + _held(working):
            return None
        if not grows and wanted > self._pool.kv_free + _held(victims):
            self._next_taking = now + self._while_computing(job.rows, TAKEN)
        return [*victims, *working]

    def _while_computing(self, rows: int, times: float) -> float:
        seconds = self._prefill(rows)
        return LEAST if math.isinf(seconds) else min(max(LEAST, times * seconds), MOST)


def _kept(session: TargetSession) -> float:
    return -math.inf if session.kept_until is None else session.kept_until


def _held(sessions: Sequence[TargetSession]) -> int:
    """Rows, those of shared blocks counted for each."""
    return sum(session.sequence.allocated for session in sessions)
