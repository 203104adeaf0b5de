"""Who may hold keys and values, and whose go when room is wanted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specdec.core.errors import ResourceExhausted
from specdec.edge.messages import Refusal
from specdec.lm.kv import KVPool, KVSequence
from target_service.session import TargetSession, VerifyJob


class Room:
    """Admission to a pool. Room is made for a job as a whole before its first row is computed, so no two jobs can wait
    for each other. Where the pool is full, parked sequences go first, least recently used first, then those of open
    sessions that no admitted job uses; while only admitted jobs are left, a job waits for them to finish."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._parked: dict[str, KVSequence] = {}  # least recently used first

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def free(self) -> int:
        """Tokens that fit beside the open sessions: parked ones do not count."""
        return self._pool.kv_free + sum(sequence.allocated for sequence in self._parked.values())

    def park(self, session_id: str, sequence: KVSequence) -> None:
        """Keep a sequence whose session has ended, for a later one of the same id; its last tree too, for some of it
        may have come true."""
        if (older := self._parked.pop(session_id, None)) is not None:
            older.release()
        if sequence.allocated:
            self._parked[session_id] = sequence

    def take(self, session_id: str) -> KVSequence | None:
        """The sequence that is parked under this id, parked no longer."""
        return self._parked.pop(session_id, None)

    def admit(
        self, waiting: Sequence[VerifyJob], sessions: Collection[TargetSession]
    ) -> tuple[list[VerifyJob], list[tuple[VerifyJob, Refusal]]]:
        """(jobs that have their room, jobs that can never have it). waiting: oldest first; sessions: all open ones.

        Once an older job has to wait, younger ones may only use the room that they have already: nobody overtakes it
        to the memory."""
        admitted, refused = [], []
        overtaken = False
        for job in waiting:
            if job.rows > self.capacity:
                message = f"{job.rows} tokens of KV wanted, there is room for {self.capacity} in all"
                refused.append((job, Refusal(ResourceExhausted.reason, message)))
                continue
            if not job.admitted and (not overtaken or job.rows <= job.session.sequence.allocated):
                in_use = {other.session for other in waiting if other.admitted}
                job.admitted = self._make_room(job, [s for s in sessions if s not in in_use])
            if job.admitted:
                admitted.append(job)
            overtaken |= not job.admitted
        return admitted, refused

    def _make_room(self, job: VerifyJob, idle: Sequence[TargetSession]) -> bool:
        """Reserve the rows of the whole job, at the cost of parked and idle sequences. Drops nothing in vain."""
        sequence = job.session.sequence
        by_age = sorted((s for s in idle if s is not job.session), key=lambda s: s.last_used)
        victims = [*self._parked.values(), *(s.sequence for s in by_age if s.sequence.allocated)]
        room = self._pool.kv_free + sequence.allocated + sum(victim.allocated for victim in victims)
        if job.rows > room:
            return False
        while True:
            try:
                sequence.reserve(job.rows)
                return True
            except ResourceExhausted:
                assert victims, "the room that was counted is not there"
                victims.pop(0).release()
                self._parked = {id_: parked for id_, parked in self._parked.items() if parked.allocated}
