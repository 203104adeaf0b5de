"""One drafter, the thread that drives it, and the queue before it. Drafters never wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from draft_service.drafters import Drafter, DraftJob
from specdec.core.draft import Draft
from specdec.core.errors import SpecdecError
from specdec.edge.batcher import MicroBatcher

Outcome = Draft | SpecdecError


class Lane(MicroBatcher[DraftJob, Outcome]):
    """Batches the jobs of all sessions. What `propose` leaves unfinished comes again with what queued meanwhile."""

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        *,
        queue_limit: int,
        thread: ThreadPoolExecutor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._propose, queue_limit=queue_limit, name=name, thread=thread, clock=clock)
        self.drafter = drafter

    def _propose(self, jobs: list[DraftJob]) -> list[tuple[DraftJob, Outcome]]:
        outcomes = self.drafter.propose(jobs)
        return [(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True) if outcome is not None]
