"""Drafting by a head that continues the target's features, batched over sessions; what grows is up to a `Growth`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from draft_service.drafters import DraftJob
from draft_service.drafters.eagle_model import OUTPUT, EagleModel
from draft_service.drafters.feature_model import read_feature_model
from draft_service.drafters.feature_sequence import FeatureSequences
from draft_service.drafters.forward_cost import ForwardCost
from draft_service.drafters.growth import Growth, extend_all, refusal
from draft_service.drafters.head_progress import Progress, Rows
from draft_service.session import DraftSession
from specdec.core.draft import Draft
from specdec.core.errors import InvalidArgument, ReplicaFault, SpecdecError
from specdec.core.features import FeatureRows
from specdec.core.tree import EMPTY_TREE, Ids
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.runner import Segment

if TYPE_CHECKING:
    from draft_service.config import DraftConfig

MAX_TRUNK = 8  # known tokens without a feature that are bridged by estimates; beyond, a draft is hardly worth its time
NewGrowth = Callable[[DraftJob, int], Growth]  # of a job and the most draft tokens it may have


class EagleDrafter:
    """A job needs the features of its context up to the last token but one (Li et al. 2024, "EAGLE"). The rows of true
    features stay between jobs; those that a draft was guessed with are dropped when the next begins. Where the last
    features are missing, estimates stand in; without any features the draft is empty.

    A job that would miss its deadline with one more forward is answered with the tree it has."""

    def __init__(
        self,
        name: str,
        model: EagleModel,
        new_growth: NewGrowth,
        metrics: ReplicaMetrics,
        *,
        tree: bool,
        token_budget: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nothing = Draft(EMPTY_TREE, drafter=name)
        self._head = model
        self._new_growth = new_growth
        self._metrics = metrics
        self._token_budget = token_budget
        self._clock = clock
        self._cost = ForwardCost()
        self._sequences = FeatureSequences(model.runner.pool)
        self._progress: dict[DraftSession, Progress] = {}  # of jobs that come again
        self.kv_total = self.kv_free = model.runner.pool.capacity
        self.model = model.parts.identity(tree=tree, max_context=0)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        busy = {job.session for job in jobs}
        assert len(busy) == len(jobs), "two jobs of one session"
        begun = [self._begin(job, busy) for job in jobs]
        running = [progress for progress in begun if isinstance(progress, Progress)]
        if len(running) == len(begun):
            while all(p.growth.outcome is None for p in running) and (batch := self._plan(running)):
                self._forward(batch)
        self._progress = {p.growth.job.session: p for p in running if p.growth.outcome is None}
        self.kv_free = self._head.runner.pool.kv_free
        return [p.growth.outcome if isinstance(p, Progress) else p for p in begun]

    def close(self, session: DraftSession) -> None:
        self._progress.pop(session, None)
        self._sequences.drop(session)
        self.kv_free = self._head.runner.pool.kv_free

    def warm_up(self) -> None:
        """The first forwards are slow and say nothing about the later ones."""
        rows, width = min(self._token_budget, 64), self._head.parts.hidden_size
        layers = len(self._head.parts.layers)
        for length in (1, rows, 1, rows):
            begun = self._clock()
            sequence = self._head.runner.new_sequence()
            blank = FeatureRows(0, length, bytes(length * layers * (4 + width)))
            ids = np.zeros(length, dtype=np.uint32)
            segment = Segment(sequence, ids, wanted=1, tapped=1, inputs=self._head.mix(self._head.gather(blank), ids))
            self._head.runner.compute([segment], OUTPUT)
            sequence.discard()
            self._cost.observe(length, self._clock() - begun)

    def _begin(self, job: DraftJob, busy: Collection[DraftSession]) -> Progress | Draft | SpecdecError:
        """The job's progress: as it was left, or begun; or its outcome, where there is nothing to do."""
        known = self._progress.get(job.session)
        if known is not None and known.growth.job is job:
            return known
        if (error := refusal(job, self.model.vocab_size)) is not None:
            return error
        limit = max(0, min(job.num_draft_tokens, self.model.max_context - len(job.context)))
        features = job.session.features.before(len(job.context) - 1)
        trunk = len(job.context) - 1 - features.end
        if not (limit and features.rows and trunk <= MAX_TRUNK):
            return self._nothing
        progress = self._started(job, self._new_growth(job, limit), features)
        if isinstance(progress, Progress) and not self._sequences.reserve(progress.sequence, progress.max_rows, busy):
            self._sequences.drop(job.session)
            return self._nothing
        return progress

    def _started(self, job: DraftJob, growth: Growth, features: FeatureRows) -> Progress | SpecdecError:
        sequence = self._sequences.begin(job.session, job.context, features)
        new = features.since(sequence.end)
        known: Ids = job.context[sequence.end + 1 : features.end + 1]
        try:
            g = self._head.gather(new)
        except InvalidArgument as error:
            return error
        job.session.computed_tokens += len(known)
        return Progress(growth, sequence, known, job.context[features.end + 1 :], g)

    def _plan(self, running: list[Progress]) -> list[Progress]:
        """Whose rows are computed next, the fewest first. Empty where some have no time left for that: they are
        finished."""
        batch: list[Progress] = []
        rows = 0
        for progress in sorted(running, key=lambda p: p.num_pending):
            if batch and rows + progress.num_pending > self._token_budget:
                break
            batch.append(progress)
            rows += progress.num_pending
        end = self._clock() + self._cost.estimate(rows)
        late = [progress for progress in running if progress.growth.job.deadline < end]
        for progress in late:
            if not progress.begun and progress.growth.job.deadline > self._clock():
                self._cost.doubt()
            progress.growth.finish()
        return [] if late else batch

    def _forward(self, batch: list[Progress]) -> None:
        begun = self._clock()
        parts = [progress.pending() for progress in batch]
        segments = self._segments(batch, parts)
        computed = self._head.runner.compute(segments, OUTPUT)
        ready = []
        for progress, part, result in zip(batch, parts, computed, strict=True):
            progress.computed(result.hidden[:, 0])
            if part.wanted:
                ready.append((progress, result.logits))
        errors = extend_all([p.growth for p, _ in ready], [logits for _, logits in ready], self._head.columns)
        for (progress, _), error in zip(ready, errors, strict=True):
            if isinstance(error, ReplicaFault):
                self._sequences.drop(progress.growth.job.session)  # what made NaN once makes it again
        rows, seconds = sum(map(len, parts)), self._clock() - begun
        self._cost.observe(rows, seconds)
        self._metrics.draws.add(errors.count(None))
        self._metrics.forwards.add()
        self._metrics.rows.add(rows)
        self._metrics.batch_size.record(len(batch))
        self._metrics.compute_seconds.record(seconds)

    def _segments(self, batch: list[Progress], parts: list[Rows]) -> list[Segment]:
        ids = np.concatenate([part.ids for part in parts])
        mixed = self._head.mix(torch.cat([part.g for part in parts]), ids)
        inputs = torch.split(mixed, [len(part) for part in parts])
        return [
            Segment(
                progress.sequence.rows,
                part.token_ids,
                part.tree_ids,
                part.tree_parents,
                wanted=part.leaves if part.wanted else 0,
                tapped=part.leaves,
                inputs=rows,
            )
            for progress, part, rows in zip(batch, parts, inputs, strict=True)
        ]


def load_head(config: DraftConfig, argument: str | None) -> EagleModel:
    """The EAGLE head in the draft folder `argument`: blocking, seconds. Raises ConfigError."""
    assert argument is not None, "checked by the configuration"
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return EagleModel(read_feature_model(argument, "eagle", config), config.kv_tokens, config.network)
