"""The target engine: batched, synchronous, no I/O. Every session has computed tokens catching up with known
tokens; there is no prefill or decode phase. One forward per step holds prefill chunks, chains and trees of
many sessions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.core.errors import InvalidArgument, ReplicaFault, ResourceExhausted, SpecdecError
from specdec.core.features import VerifiedFeatures
from specdec.core.tree import Ids
from specdec.core.verification import Verification
from specdec.edge.messages import OpenSession, Refusal, StaleContext
from specdec.lm.answers import native_laws
from specdec.lm.runner import Runner, Segment
from target_service.features import check_layers, columns, first_wanted, verified_features
from target_service.room import Room
from target_service.schedule import Schedule, Work
from target_service.session import TargetSession, VerifyJob, VerifyResult
from target_service.verify import VerifyItem, verify_all

Finished = tuple[VerifyJob, VerifyResult]

_log = logging.getLogger(__name__)

GIVE_UP = 0.7  # of a message's budget, after which it is refused for want of room: its sender can still go elsewhere
PAUSE = 0.002  # seconds between two looks where all that wait need room


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """token_budget: rows of one forward; max_nodes: draft tokens of one message; max_context: positions."""

    token_budget: int
    max_nodes: int
    max_context: int
    max_sessions: int


@dataclass(frozen=True, slots=True)
class ForwardReport:
    """One forward that succeeded: what metrics want to know. seconds: laws and draws included; draws: tokens
    drawn. kv_hits, prefix_hits: context tokens that the jobs it finished did not have to compute, because their
    sessions held them, or because the prefix cache had them. evictions: cached blocks that made room since the last
    report."""

    jobs: int
    rows: int
    seconds: float
    draws: int
    kv_hits: int
    prefix_hits: int
    evictions: int


class Engine:
    """All methods run on one thread; attributes may be read from anywhere. KV is a cache of what sessions know: an
    idle session may lose it at any time and then computes it again, unseen by the caller (`target_service.room`)."""

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        *,
        schedule: Schedule | None = None,
        report: Callable[[ForwardReport], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limits = limits
        self.schedule = schedule or Schedule(limits.token_budget, limits.max_nodes + 1)
        self.vocab_size = runner.loaded.vocab_size
        self.failures_in_a_row = 0
        self.kv_total = self.kv_free = runner.pool.capacity
        self.exchange = runner.pool.exchange
        self._runner = runner
        self._pool = runner.pool
        self._room = Room(runner.pool, lambda rows: self.schedule.prefill_seconds(rows, 0), clock)
        self._evictions = 0
        self._report = report
        self._clock = clock
        self._pause = pause
        self._step = 0
        self._sessions: set[TargetSession] = set()

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> Collection[TargetSession]:
        """On the compute thread."""
        return self._sessions

    def open(self, opening: OpenSession) -> TargetSession:
        """A session that knows no tokens yet.

        Raises ResourceExhausted at max_sessions."""
        if len(self._sessions) >= self.limits.max_sessions:
            raise ResourceExhausted(f"{len(self._sessions)} sessions are open, the limit")
        session = TargetSession(opening, self._runner.new_sequence(opening.cache_salt), last_used=self._clock())
        self._sessions.add(session)
        return session

    def close(self, session: TargetSession) -> None:
        """Let go of the session's KV: full blocks stay in the prefix cache. Closing twice does nothing."""
        if session.closed:
            return
        session.closed = True
        self._sessions.remove(session)
        session.sequence.release()
        self.kv_free = self._pool.kv_free

    def step(self, pending: Sequence[VerifyJob]) -> list[Finished]:
        """One forward over what fits of the pending jobs, oldest first. Returns the jobs it finished; the
        others are to be given again, with those that have come since. Of several jobs of one session only the
        oldest runs.

        A job's trouble is its own result. A forward that raises refuses the jobs that were in it
        (FORWARD_FAILED) and drops their KV; nothing else changes."""
        self._step += 1
        finished: list[Finished] = []
        waiting: dict[TargetSession, VerifyJob] = {}
        for job in pending:
            if job.session in waiting:
                continue
            trouble = self._trouble(job)
            if trouble is None:
                waiting[job.session] = job
            else:
                finished.append((job, VerifyResult(trouble)))
        running, refused = self._room.admit(list(waiting.values()), self._sessions)
        if waiting and not running and not refused:
            self._pause(PAUSE)  # those that have the room are away, and come back or are given up
        finished += [(job, VerifyResult(refusal)) for job, refusal in refused]
        finished += self._forward(running)
        self.kv_free = self._pool.kv_free
        return finished

    def probe(self) -> None:
        """A forward of one token, as warm-up and to tell whether the model still computes. Raises what it raises, or
        ResourceExhausted where there is no room for it."""
        native_laws()  # compiles, the first time
        sequence = self._runner.new_sequence()
        try:
            self._runner.forward([Segment(sequence, np.zeros(1, dtype=np.uint32), wanted=1)])
        finally:
            sequence.release()
        self.failures_in_a_row = 0

    def _trouble(self, job: VerifyJob) -> StaleContext | Refusal | None:
        """Why the job cannot be served, if so; a job that comes for the first time is begun."""
        if job.session.closed:
            return Refusal("CLOSED", "the session's stream has ended")
        return None if job.begun else self._begin(job)

    def _begin(self, job: VerifyJob) -> StaleContext | Refusal | None:
        """Apply the context rule, tokens[offset:] = token_ids."""
        session, request = job.session, job.request
        if request.offset > len(session.context):
            return StaleContext(len(session.context))
        context = np.concatenate([session.context[: request.offset], request.token_ids])
        try:
            self._check(job, context)
        except InvalidArgument as error:
            return _refusal(error)
        opening = request.open or session.opening
        if opening.feature_layers != session.opening.feature_layers:
            session.delivered = None
        session.opening, session.context = opening, context
        job.fresh_from = first_wanted(opening, session.delivered, context)
        session.sequence.rewind(context[: job.fresh_from])
        session.last_used, job.eligible = self._clock(), self._step
        if request.budget_us:
            job.until = session.last_used + GIVE_UP * request.budget_us / 1e6
        job.begun = True
        return None

    def _check(self, job: VerifyJob, context: Ids) -> None:
        request, limits = job.request, self.limits
        opening = request.open or job.session.opening
        if opening.session_id != job.session.opening.session_id:
            raise InvalidArgument("open.session_id", opening.session_id, "a stream serves one session only")
        check_layers(opening, self._runner.loaded.num_layers)
        if not len(context):
            raise InvalidArgument("token_ids", [], "a context needs at least one token")
        if (context >= self.vocab_size).any():
            raise InvalidArgument(
                "token_ids", int(context.max()), f"must be below the vocabulary size {self.vocab_size}"
            )
        tree = request.tree
        if tree.num_draft_tokens > limits.max_nodes:
            raise InvalidArgument("draft_token_ids", tree.num_draft_tokens, f"at most {limits.max_nodes}")
        if (tree.token_ids >= self.vocab_size).any():
            worst = int(tree.token_ids.max())
            raise InvalidArgument("draft_token_ids", worst, f"must be below the vocabulary size {self.vocab_size}")
        deepest = len(context) + int(tree.depths.max())
        if deepest > limits.max_context:
            raise InvalidArgument("token_ids", deepest, f"context and draft fit {limits.max_context} positions")
        if opening.turn_start > len(context):
            raise InvalidArgument("turn_start", opening.turn_start, f"the context has {len(context)} tokens")
        for id_, _ in opening.params.logit_bias:
            if id_ >= self.vocab_size:
                raise InvalidArgument("logit_bias_ids", id_, f"must be below the vocabulary size {self.vocab_size}")

    def _forward(self, running: list[VerifyJob]) -> list[Finished]:
        running.sort(key=lambda job: job.eligible)
        work = [Work(job.rows_left, job.session.sequence.num_rows, begun=bool(job.logits)) for job in running]
        given = self.schedule.share(work)
        batch = [(job, rows) for job, rows in zip(running, given, strict=True) if rows]
        if not batch:
            return []
        begun = self._clock()
        layers = sorted({layer for job, _ in batch for layer in job.session.opening.feature_layers})
        try:
            parts = self._runner.compute([job.next_segment(rows) for job, rows in batch], layers)
        except Exception as error:  # whatever a model may raise: these jobs fail, and the next step goes on
            return self._failed([job for job, _ in batch], error)
        self.failures_in_a_row = 0
        for (job, _), part in zip(batch, parts, strict=True):
            job.logits.append(part.logits)
            if wanted := job.session.opening.feature_layers:
                job.hidden.append(columns(part.hidden, layers, wanted))
            job.eligible = self._step + 1
        done = [job for job, _ in batch if not job.rows_left]
        answers = self._answers(done)
        ended = self._clock()
        seconds = ended - begun
        for job in done:
            job.session.last_used = ended
        self.schedule.observe(work, given, seconds)
        self._report(self._new_report(done, sum(given), len(batch), seconds))
        return [
            (job, VerifyResult(answer, job.computed_tokens, len(batch), sum(given), _features(job, answer)))
            for job, answer in zip(done, answers, strict=True)
        ]

    def _answers(self, jobs: list[VerifyJob]) -> list[Verification | Refusal]:
        items = [VerifyItem(_joined(job.logits), job.session.context, job.session.opening, job.request) for job in jobs]
        answers: list[Verification | Refusal] = []
        for job, result in zip(jobs, verify_all(items, self.vocab_size), strict=True):
            if isinstance(result, ReplicaFault):
                job.session.sequence.discard()  # what made NaN once makes it again
            answers.append(result if isinstance(result, Verification) else _refusal(result))
        return answers

    def _failed(self, jobs: list[VerifyJob], error: Exception) -> list[Finished]:
        _log.error("a forward of %d jobs failed", len(jobs), exc_info=error)
        self.failures_in_a_row += 1
        for job in jobs:
            job.session.sequence.discard()
        failed = Refusal("FORWARD_FAILED", f"the model raised {type(error).__name__}")
        return [(job, VerifyResult(failed)) for job in jobs]

    def _new_report(self, finished: list[VerifyJob], rows: int, jobs: int, seconds: float) -> ForwardReport:
        draws = sum(job.request.tree.num_nodes for job in finished)
        found = sum(job.found_tokens for job in finished)
        hits = sum(len(job.session.context) - job.computed_tokens for job in finished) - found
        evictions, self._evictions = self._pool.evictions - self._evictions, self._pool.evictions
        return ForwardReport(jobs, rows, seconds, draws, hits, found, evictions)


def _refusal(error: SpecdecError) -> Refusal:
    return Refusal(error.reason, str(error), error.field if isinstance(error, InvalidArgument) else "")


def _features(job: VerifyJob, answer: Verification | Refusal) -> VerifiedFeatures | None:
    session = job.session
    if not job.hidden or isinstance(answer, Refusal):
        return None
    features, session.delivered = verified_features(_joined(job.hidden), session.context, job.request.tree, answer)
    return features


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
