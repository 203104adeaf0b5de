"""Who may hold keys and values, and whose go when room is wanted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specdec.core.errors import ResourceExhausted
from specdec.edge.messages import Refusal
from specdec.lm.kv import KVPool
from target_service.session import TargetSession, VerifyJob


class Room:
    """Admission to a pool. Room is made for a job as a whole before its first row is computed, so no two jobs can wait
    for each other. Where the pool is full, blocks that only the prefix cache keeps go first, then sessions that no
    admitted job uses let go of theirs, least recently used first; while only admitted jobs are left, a job waits for
    them to finish. A session that lost its blocks finds most of them in the cache, unless they were really needed."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool

    def admit(
        self, waiting: Sequence[VerifyJob], sessions: Collection[TargetSession]
    ) -> tuple[list[VerifyJob], list[tuple[VerifyJob, Refusal]]]:
        """(jobs that have their room, jobs that can never have it). waiting: oldest first; sessions: all open ones.

        Once an older job has to wait, younger ones may only use the room that they have already: nobody overtakes it
        to the memory."""
        admitted, refused = [], []
        overtaken = False
        for job in waiting:
            if job.rows > self._pool.capacity:
                message = f"{job.rows} tokens of KV wanted, there is room for {self._pool.capacity} in all"
                refused.append((job, Refusal(ResourceExhausted.reason, message)))
                continue
            if not job.admitted and (not overtaken or not job.session.sequence.missing(job.rows)):
                in_use = {other.session for other in waiting if other.admitted}
                job.admitted = _make_room(job, [s for s in sessions if s not in in_use])
            if job.admitted:
                admitted.append(job)
            overtaken |= not job.admitted
        return admitted, refused


def _make_room(job: VerifyJob, idle: Sequence[TargetSession]) -> bool:
    """Reserve the rows of the whole job, what the prefix cache has of them included, at the cost of idle sessions."""
    sequence = job.session.sequence
    sequence.adopt(job.session.context[: job.fresh_from])
    victims = sorted((s for s in idle if s is not job.session and s.sequence.allocated), key=lambda s: -s.last_used)
    while True:
        try:
            sequence.reserve(job.rows)
        except ResourceExhausted:
            if not victims:
                return False
            victims.pop().sequence.release()
        else:
            job.found_tokens = sequence.adopted
            return True
