"""Who may hold keys and values, and whose go when room is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from specdec.core.errors import ResourceExhausted
from specdec.edge.messages import Refusal
from specdec.lm.kv import KVPool
from target_service.session import TargetSession, VerifyJob

AWAY = 1.0  # seconds without a message after which a session is idle: nothing is lost soon by taking its room
# A session at work that loses its room computes its context again when it comes back. Where sessions need more than
# there is, each would take from the next in every cycle, and hardly anything else be computed: 20 times the rows. So
# who was given room keeps it for KEPT times what its context takes to compute, and who has none takes from those at
# work only TAKEN times that after the last who did.
KEPT, TAKEN = 4.0, 2.0
LEAST = 0.1  # seconds, of both


class Room:
    """Admission to a pool. Room is made for a job as a whole before its first row is computed, so no two jobs can wait
    for each other. Where the pool is full, blocks that only the prefix cache keeps go first, then idle sessions let go
    of theirs, least recently used first; then those at work that no admitted job uses, who held theirs for longest
    first. While none is left, a job waits. A session that lost its blocks finds most of them in the cache, unless they
    were really needed.

    prefill: seconds to compute so many rows, infinity where nobody knows; clock: in seconds."""

    def __init__(self, pool: KVPool, prefill: Callable[[int], float], clock: Callable[[], float]) -> None:
        self._pool = pool
        self._prefill = prefill
        self._clock = clock
        self._next_taking = -math.inf

    def admit(
        self, waiting: Sequence[VerifyJob], sessions: Collection[TargetSession]
    ) -> tuple[list[VerifyJob], list[tuple[VerifyJob, Refusal]]]:
        """(jobs that have their room, jobs that can never have it). waiting: oldest first; sessions: all open ones.

        Once a job whose session has no room has to wait, others without may only use what is there already: nobody
        overtakes it to the memory. Who is at work goes on, and grows."""
        admitted, refused = [], []
        overtaken = False
        for job in waiting:
            if job.rows > self._pool.capacity:
                message = f"{job.rows} tokens of KV wanted, there is room for {self._pool.capacity} in all"
                refused.append((job, Refusal(ResourceExhausted.reason, message)))
                continue
            grows = job.session.kept_until is not None and job.session.sequence.allocated > 0
            if not job.admitted and (grows or not overtaken or not job.session.sequence.missing(job.rows)):
                in_use = {other.session for other in waiting if other.admitted}
                job.admitted = self._make_room(job, [s for s in sessions if s not in in_use], grows)
            if job.admitted:
                admitted.append(job)
            overtaken |= not job.admitted and not grows
        return admitted, refused

    def _make_room(self, job: VerifyJob, free: Sequence[TargetSession], grows: bool) -> bool:
        """Reserve the rows of the whole job, what the prefix cache has of them included, at the cost of others."""
        sequence, now = job.session.sequence, self._clock()
        sequence.adopt(job.session.context[: job.fresh_from])
        others = [s for s in free if s is not job.session and s.sequence.allocated]
        victims = self._victims(others, now, at_work=grows or now >= self._next_taking)
        while True:
            try:
                sequence.reserve(job.rows)
                break
            except ResourceExhausted:
                victim = next(victims, None)
                if victim is None:
                    return False
                if not grows and not _idle(victim, now):
                    self._next_taking = now + self._while_computing(job.rows, TAKEN)
                victim.sequence.release()
                victim.kept_until = None
        job.found_tokens = sequence.adopted
        if not grows:
            job.session.kept_until = now + self._while_computing(job.rows, KEPT)
        return True

    def _victims(self, others: Sequence[TargetSession], now: float, at_work: bool) -> Iterator[TargetSession]:
        yield from sorted((s for s in others if _idle(s, now)), key=lambda s: s.last_used)
        if at_work:
            working = [s for s in others if not _idle(s, now) and (s.kept_until is None or s.kept_until <= now)]
            yield from sorted(working, key=lambda s: s.kept_until or -math.inf)

    def _while_computing(self, rows: int, times: float) -> float:
        seconds = self._prefill(rows)
        return LEAST if math.isinf(seconds) else max(LEAST, times * seconds)


def _idle(session: TargetSession, now: float) -> bool:
    return now - session.last_used > AWAY
