"""The loop. One cycle: draft, verify, accept, commit; the commit runs while the next draft is under way, and only
emission waits for it, so that a client never sees a token that a crash could take back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

from coordinator.context import Context
from coordinator.cycle import Cycle
from coordinator.drafting import Drafted
from coordinator.experience import Learning
from coordinator.features import SessionFeatures
from coordinator.judging import rule_of
from coordinator.session import SessionRecord
from coordinator.sources import Ask, Sources
from coordinator.stats import Stats
from coordinator.stopping import TurnOutput
from coordinator.store.outcomes import StoreBehind
from coordinator.store.protocol import SessionStore
from coordinator.verifying import Verified, Verifying
from specdec.core.acceptance import Acceptance, emitted
from specdec.core.randomness import Purpose, uniforms
from specdec.edge import telemetry as names
from specdec.edge.tasks import TaskGroup
from specdec.edge.telemetry import CoordinatorMetrics, Telemetry, traceparent


class Generation:
    """One choice of one request, from its record to its end.

    emit: sends a committed cycle to the client; trace: traceparent of the request's span; fixed_k: draft tokens of a
    cycle, None: the planner decides; max_k: at most; heartbeat: seconds between two signs of life to the store;
    learning: what chooses where the planner does, and learns."""

    def __init__(
        self,
        record: SessionRecord,
        output: TurnOutput,
        sources: Sources,
        verifying: Verifying,
        features: SessionFeatures,
        store: SessionStore,
        emit: Callable[[Cycle], Awaitable[None]],
        telemetry: Telemetry,
        metrics: CoordinatorMetrics,
        *,
        trace: str,
        fixed_k: int | None,
        max_k: int,
        heartbeat: float,
        learning: Learning,
    ) -> None:
        self.stats = Stats()
        self._record = record
        self._context = Context(record.token_ids, capacity=record.turn_start + record.turn.max_tokens)
        self._output = output
        self._sources = sources
        self._verifying = verifying
        self._features = features
        self._store = store
        self._emit = emit
        self._telemetry = telemetry
        self._metrics = metrics
        self._trace = trace
        self._fixed_k = fixed_k
        self._learning = learning
        self._unlearned: list[Cycle] = []
        self._max_k = max_k
        self._heartbeat = heartbeat
        self._ended = False
        self._outbox: asyncio.Queue[Cycle | None] = asyncio.Queue(maxsize=1)
        self._clock = asyncio.get_running_loop().time
        self._cycle_end = self._clock()

    async def run(self) -> None:
        """Generates to the end of the turn. Cancelled in whatever phase, it leaves no stream and no task behind."""
        async with TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep(), name="keep")
            courier = tasks.create_task(self._deliver(), name="deliver")
            try:
                while self._output.finish is None:
                    await self._outbox.put(await self._cycle(tasks))
                await self._outbox.put(None)
                await courier
            finally:
                keeper.cancel()
                self._sources.drop()
                self._verifying.drop()

    async def _cycle(self, tasks: asyncio.TaskGroup) -> Cycle:
        number, base = self.stats.cycles + 1, len(self._context)
        ask = self._choose()
        with self._telemetry.span(names.SPAN_CYCLE, parent=self._trace) as span:
            with self._telemetry.span(names.SPAN_DRAFT, parent=span) as child:
                drafted = await self._sources.draft(ask, self._context, number, traceparent(child), tasks)
            with self._telemetry.span(names.SPAN_VERIFY, parent=span) as child:
                verified = await self._verify(drafted, number, traceparent(child), tasks)
            judged = self._clock()
            with self._telemetry.span(names.SPAN_ACCEPT, parent=span):
                acceptance = self._accept(drafted, verified, base)
                self._features.add(verified.features, acceptance.nodes, verified.verification.form)
                emission = self._output.accept(emitted(drafted.draft, acceptance))
                self._context.append(np.asarray(emission.token_ids, dtype=np.uint32))
            alphas = () if self._record.turn.params.greedy else acceptance.alphas
            now = self._clock()
            cycle = Cycle(
                number=number,
                base=base,
                ask=ask,
                drafted=drafted,
                verified=verified,
                acceptance=acceptance,
                emission=emission,
                alphas=alphas,
                traceparent=traceparent(span),
                seconds=now - self._cycle_end,
                accept_seconds=now - judged,
            )
            self._cycle_end = now
            if span.is_recording():
                span.set_attributes(cycle.attributes())
        self._count(cycle)
        return cycle

    async def _verify(self, drafted: Drafted, number: int, trace: str, tasks: asyncio.TaskGroup) -> Verified:
        try:
            return await self._verifying.verify(self._context, drafted.draft, number, trace, tasks)
        except BaseException:
            self._metrics.wasted_draft_tokens.add(drafted.draft.tree.num_draft_tokens)
            raise

    def _choose(self) -> Ask:
        """Whom to ask, and for how much. A cycle with k draft tokens emits up to k + 1, so the last token is never
        drafted for."""
        limit = min(self._max_k, self._output.remaining - 1)
        if self._fixed_k is not None or not limit:
            return self._sources.fixed(min(self._fixed_k or 0, limit))
        offers = self._sources.offers(self._context, limit)
        times = self._verifying.step_times
        return self._sources.ask(*self._learning.choose(offers, limit, len(self._context), times))

    def _accept(self, drafted: Drafted, verified: Verified, base: int) -> Acceptance:
        draft = drafted.draft
        rule = rule_of(self._record.turn, draft)
        noise = uniforms(self._record.turn.seed, base, Purpose.ACCEPT, draft.tree.num_nodes)
        return rule(draft, verified.verification, noise)

    def _count(self, cycle: Cycle) -> None:
        stats = self.stats
        if cycle.number == 1:
            stats.cached_tokens = cycle.base - cycle.verified.timing.computed_tokens
        stats.cycle(cycle.judged_drafter, cycle.num_draft_tokens, cycle.num_reached, cycle.num_accepted, cycle.alphas)
        stats.cut_tokens += cycle.emission.cut_tokens
        stats.draft_seconds += cycle.drafted.seconds
        stats.verify_seconds += cycle.verified.seconds
        if cycle.drafted.fallback is not None:
            stats.fell_back(cycle.drafted.fallback)
        if self._fixed_k is None:
            self._unlearned.append(cycle)
            if cycle.ask.k:
                self._learn()

    def _learn(self) -> None:
        """At once from a draft, which decides about the next one; from a cycle without one while the next cycle is on
        its way, and not between the two."""
        for cycle in self._unlearned:
            self._learning.observe(cycle.outcome())
        self._unlearned.clear()

    async def _deliver(self) -> None:
        while (cycle := await self._outbox.get()) is not None:
            start = self._clock()
            with self._telemetry.span(names.SPAN_COMMIT, parent=cycle.traceparent):
                await self._commit(cycle)
            self._ended = cycle.emission.finish is not None
            now = self._clock()
            self.stats.commit_seconds += now - start
            self._metrics.phase_seconds.record(now - start, phase="commit")
            self._learn()
            cycle.record(self._metrics)  # here, while the next cycle is on its way, and not between the two
            self._metrics.num_emitted_tokens.add(len(cycle.emission.token_ids))
            self.stats.emitted(len(cycle.emission.token_ids), now)
            await self._emit(cycle)

    async def _commit(self, cycle: Cycle) -> None:
        """Appends to the record; where the store lost what it had, it is written back whole."""
        record, finish = self._record, cycle.emission.finish
        held = {cycle.verified.replica_id: cycle.base}
        try:
            await self._store.append(
                record.session_id,
                epoch=record.epoch,
                expected_length=cycle.base,
                token_ids=np.asarray(cycle.emission.token_ids, dtype=np.uint32),
                finish=finish,
                held=held,
            )
        except StoreBehind:
            committed = self._context.ids[: cycle.base + len(cycle.emission.token_ids)].copy()
            await self._store.replace(
                replace(record, token_ids=committed, finish=finish, running=finish is None, held=held)
            )

    async def _keep(self) -> None:
        """Signs of life while a long prefill or a slow reader keeps commits away. None after the last commit: a next
        turn may have begun before the end of this one was read."""
        while True:
            await asyncio.sleep(self._heartbeat)
            if self._ended:
                return
            try:
                await self._store.heartbeat(self._record.session_id, self._record.epoch)
            except StoreBehind:
                continue  # the next commit writes the record back
