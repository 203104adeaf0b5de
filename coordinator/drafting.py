"""Where a cycle's guesses come from: a drafter of the pool, else the coordinator's own n-gram, else nothing.
No failure of a drafter ever reaches the client: that cycle runs without its draft, and the cause is counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from coordinator.context import Context
from coordinator.features import SessionFeatures
from coordinator.pace import Pace, budget_us
from coordinator.pool import Pool
from coordinator.redraw import redrawn
from coordinator.stream import OVERLOADED, CycleStream, Exchange, ReplicaLate
from coordinator.turn import Turn
from specdec.core import ngram
from specdec.core.draft import NO_DRAFT, Draft, DraftKind
from specdec.core.errors import DraftFault, ReplicaFault
from specdec.core.features import FeatureRows
from specdec.core.laws import check_draft, check_draws
from specdec.core.tree import DraftTree
from specdec.edge.draft_codec import decode_draft_reply, encode_draft_request
from specdec.edge.messages import DraftReply, DraftRequest, OpenSession, Refusal, Timing

NO_TIMING = Timing()
LATE_IN_A_ROW = 3  # late replies after which a drafter is set aside; from then on one is enough, until a draft comes
# Seconds, and times its usual time, that a drafter is waited for. On a busy machine a process may well not run for some
# tens of milliseconds: a drafter that is only that late is worth more than its absence.
GRACE, PATIENCE = 0.1, 4.0
OWN = "ngram"  # the drafter that the coordinator is itself
WASTING = ("late", "bad_draft")


class DraftRefused(ReplicaFault):
    """The drafter said that it cannot draft this. excused: for want of room, or because of what the caller asked."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, reason=refusal.reason)
        self.excused = bool(refusal.field) or refusal.reason == OVERLOADED


@dataclass(frozen=True, slots=True)
class Drafted:
    """draft: what will be judged; seconds: wall time it took; fallback: why it is not the pool's, None if it is;
    timing: the replica's own account, if one answered; wasted: draft tokens asked for that came late or bad."""

    draft: Draft
    seconds: float
    fallback: str | None = None
    timing: Timing = NO_TIMING
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """timeout: seconds a draft may take before anything is known about the drafter; support: M; until: when the request
    must be over, by the loop's clock."""

    timeout: float
    support: int
    vocab_size: int
    until: float


class Drafting:
    """One generation's draft side towards one drafter of the pool, by its name; name None: whichever the replica in use
    puts first. Holds at most one stream, sticky until the replica fails or drains."""

    def __init__(
        self,
        pool: Pool,
        turn: Turn,
        opening: OpenSession,
        limits: DraftLimits,
        features: SessionFeatures,
        name: str | None,
    ) -> None:
        self._pool = pool
        self._turn = turn
        self._name = name
        self._opening = opening
        self._limits = limits
        self._features = features
        self._features_end: int | None = None  # position behind the last hidden states sent on the stream
        self._stream: CycleStream | None = None
        self._late = 0
        self._left_for: str | None = None  # why the stream before the present one was left
        self._pace = Pace()
        self._decode = partial(decode_draft_reply, vocab_size=limits.vocab_size)
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def drafter(self) -> str:
        """Who is asked: by name, else the first that the replica in use (or any ready one) serves."""
        if self._name is not None:
            return self._name
        replicas = [self._stream.replica] if self._stream is not None else self._pool.ready()
        return next((name for replica in replicas for name in replica.info.drafters), "")

    async def draft(self, context: Context, cycle: int, k: int, traceparent: str, tasks: asyncio.TaskGroup) -> Drafted:
        """At most k draft tokens after `context`, checked. Never raises for a drafter's fault."""
        if k == 0:
            return Drafted(NO_DRAFT, 0.0)
        clock = asyncio.get_running_loop().time
        start = clock()
        cause = self._reopen(tasks) or self._outgrown(len(context) + k)
        if cause is None:
            try:
                reply = await self._ask(context, cycle, k, traceparent)
                return self._checked(reply, len(context), clock() - start)
            except ReplicaFault as fault:
                cause = self._failed(fault)
        elif cause == "no_drafter" and self._name == OWN:
            cause = None
        own = Draft(DraftTree.chain(ngram.propose(context.ids, k)), drafter=OWN)
        return Drafted(own, clock() - start, cause, wasted=k if cause in WASTING else 0)

    def _failed(self, fault: ReplicaFault) -> str:
        """What the fault is counted as; the drafter is left, unless it may do better in the next cycle."""
        if isinstance(fault, ReplicaLate):
            self._late += 1
            if self._late >= LATE_IN_A_ROW:
                self.drop(fault)
            return "late"
        if isinstance(fault, DraftRefused):
            if not fault.excused:
                self.drop(fault)
            return "refused"
        self.drop(fault)
        return "bad_draft" if isinstance(fault, DraftFault) else "lost"

    def _succeeded(self, seconds: float) -> None:
        assert self._stream is not None, "a draft came from somewhere"
        self._stream.replica.forgive()
        self._late = 0
        self._pace.learn(seconds)

    def drop(self, fault: ReplicaFault | None = None) -> None:
        """Lets go of the stream; after a fault the replica is set aside too."""
        stream, self._stream, self._pace = self._stream, None, Pace()
        if stream is None:
            return
        self._left_for = "DRAINING" if fault is None else fault.reason
        self.bytes_sent += stream.bytes_sent
        self.bytes_received += stream.bytes_received
        stream.close()
        if fault is not None and fault.reason != OVERLOADED and not stream.replica.draining:
            self._pool.report(stream.replica, fault)

    def _reopen(self, tasks: asyncio.TaskGroup) -> str | None:
        """Makes sure of a stream; returns why there is none."""
        stream = self._stream
        if stream is not None and stream.lost is None and not stream.replica.draining:
            return None
        self.drop(None if stream is None else stream.lost)
        replica = self._pool.pick(drafter=self._name)
        if replica is None:
            return "no_drafter"
        if self._left_for is not None:
            self._pool.reopened(self._left_for)
        self._stream = CycleStream(replica, replica.stub.Draft(), tasks)
        self._features_end = None
        return None

    def _outgrown(self, length: int) -> str | None:
        """A context beyond the drafter's window is not for it."""
        assert self._stream is not None, "reopen gives a stream or a cause"
        window = self._stream.replica.info.max_context
        return "draft_context" if window and length > window else None

    async def _ask(self, context: Context, cycle: int, k: int, traceparent: str) -> DraftReply:
        """Once its pace is known, a drafter is waited for a few times as long at most."""
        stream = self._stream
        assert stream is not None, "asked without a stream"
        budget = self._pace.budget(self._limits.timeout, GRACE, PATIENCE)
        opening = replace(self._opening, drafter=self.drafter)
        told = budget_us(0.8 * budget, self._limits.until, asyncio.get_running_loop().time())

        def build(offset: int, first: bool) -> DraftRequest:
            return DraftRequest(
                cycle=cycle,
                offset=offset,
                token_ids=context.ids[offset:],
                num_draft_tokens=min(k, stream.replica.info.max_nodes),
                kind=DraftKind.SAMPLED if self._turn.sampled else DraftKind.CHOSEN,
                support=self._limits.support,
                budget_us=told,
                traceparent=traceparent,
                open=opening if first else None,
                features=self._unsent(stream, opening.drafter, offset),
            )

        exchange = Exchange(build, encode_draft_request, self._decode)
        return await stream.ask(exchange, context, cycle, budget)

    def _unsent(self, stream: CycleStream, drafter: str, offset: int) -> FeatureRows | None:
        """Hidden states that the drafter reads and the stream has not carried yet; of a context that it holds up to
        `offset` only, it may hold no more of them."""
        held = None if self._features_end is None else min(self._features_end, offset)
        rows = self._features.unsent(stream.replica.info.drafter_info(drafter).feature_layers, held)
        if rows is not None:
            self._features_end = rows.end
        return rows

    def _checked(self, reply: DraftReply, base: int, seconds: float) -> Drafted:
        """The draft, its draws made again and compared; raises DraftFault where it cannot be judged at all."""
        draft, seed = reply.result, self._turn.seed
        if isinstance(draft, Refusal):
            raise DraftRefused(draft)
        assert isinstance(draft, Draft), "a stale reply was answered by the stream"
        check_draft(draft, self._limits.vocab_size)
        draft = replace(draft, drafter=self.drafter)  # what it calls itself is not ours to count by
        try:
            check_draws(draft, seed, base)
        except DraftFault as fault:
            cause, honest = self._failed(fault), redrawn(draft, seed, base)
            wasted = draft.tree.num_draft_tokens - honest.tree.num_draft_tokens
            return Drafted(honest, seconds, cause, reply.timing, wasted)
        self._succeeded(seconds)
        return Drafted(draft, seconds, None, reply.timing)
