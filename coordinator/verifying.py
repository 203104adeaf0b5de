"""The target side of one generation: the same context and tree, on one verifier after another if need be, until a
sound verification comes back or the patience ends. Verify is pure, so a retry harms nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from coordinator.context import Context
from coordinator.features import SessionFeatures
from coordinator.judging import form_of
from coordinator.pace import Pace, budget_us
from coordinator.pool import Pool
from coordinator.stream import OVERLOADED, CycleStream, Exchange
from coordinator.turn import Turn
from specdec.core.acceptance import check_verification
from specdec.core.draft import Draft, DraftKind
from specdec.core.errors import InvalidArgument, ReplicaFault, ResourceExhausted, SpecdecError, Unavailable
from specdec.core.features import VerifiedFeatures, row_bytes
from specdec.core.step_time import StepTimeTable
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.messages import OpenSession, Refusal, Timing, VerifyReply, VerifyRequest
from specdec.edge.verify_codec import decode_verify_reply, encode_verify_request

OVERLOAD_PAUSE = 0.02  # seconds, doubling with each attempt
# Seconds, and times its usual time, that a verifier is waited for where there is another: one that is frozen keeps its
# connection, and only its silence tells. Moving costs the other a prefill, so mere slowness must not look like it.
GRACE, PATIENCE = 1.0, 8.0
ATTEMPTS = 4  # verifications tried for one cycle before the request fails


@dataclass(frozen=True, slots=True)
class Verified:
    """seconds: wall time of the whole verify phase, retries included; attempts: 1 when nothing failed; features: hidden
    states, where a drafter reads them."""

    verification: Verification
    seconds: float
    timing: Timing
    replica_id: str
    attempts: int
    features: VerifiedFeatures | None = None


@dataclass(frozen=True, slots=True)
class VerifyLimits:
    """timeout: seconds for one message; failover: seconds to wait for another verifier when none is ready; until: when
    the request must be over, by the loop's clock."""

    timeout: float
    failover: float
    vocab_size: int
    until: float


class Verifying:
    """Holds at most one stream, sticky until the replica fails or drains. A session pins its target fingerprint."""

    def __init__(
        self,
        pool: Pool,
        turn: Turn,
        opening: OpenSession,
        fingerprint: str,
        limits: VerifyLimits,
        features: SessionFeatures,
    ) -> None:
        self._pool = pool
        self._turn = turn
        self._opening = opening
        self._fingerprint = fingerprint
        self._limits = limits
        self._features = features
        self._stream: CycleStream | None = None
        self._avoid: frozenset[str] = frozenset()
        self._left_for: str | None = None  # why the stream before the present one was left
        self._step_times: StepTimeTable | None = None  # of the verifier in use, as they were when it was chosen
        self._decode = partial(decode_verify_reply, vocab_size=limits.vocab_size, logprobs=turn.params.logprobs)
        self._pace = Pace()  # on this stream, its first verification left out
        self._told_layers: tuple[int, ...] = ()  # what the stream was opened with
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def step_times(self) -> StepTimeTable | None:
        """What the verifier in use says of its forwards, None where it says nothing; before one is in use, what one
        that is ready says."""
        if self._stream is None and self._step_times is None:
            ready = self._pool.ready(fingerprint=self._fingerprint)
            self._step_times = ready[0].info.step_times if ready else None
        return self._step_times

    async def verify(
        self, context: Context, draft: Draft, cycle: int, traceparent: str, tasks: asyncio.TaskGroup
    ) -> Verified:
        """The laws of `draft`'s tree after `context`. Raises Unavailable when no verifier answers, InvalidArgument
        when the request leaves no token possible, SpecdecError when every verifier answers nonsense."""
        clock = asyncio.get_running_loop().time
        start = clock()
        for attempt in range(1, ATTEMPTS + 1):
            stream = await self._open(tasks)
            asked, first = clock(), not stream.opened
            try:
                reply = await self._ask(stream, context, draft, cycle, traceparent)
                verification = self._checked(reply, draft)
            except ReplicaFault as fault:
                self.drop(fault)
                if attempt == ATTEMPTS:
                    raise _final(fault) from fault
                if fault.reason == OVERLOADED:
                    await asyncio.sleep(OVERLOAD_PAUSE * 2**attempt)
                continue
            stream.replica.forgive()
            if not first:  # that one computes or fetches a context, which says nothing about the others
                self._pace.learn(clock() - asked)
            # A replica that drains serves on until another can: a stream that its end may cut beats none now.
            if stream.replica.draining and self._pool.ready(fingerprint=self._fingerprint):
                self.drop()
            replica_id = stream.replica.info.replica_id
            return Verified(verification, clock() - start, reply.timing, replica_id, attempt, reply.features)
        raise AssertionError("every attempt returns, raises or leads to the next")

    def drop(self, fault: ReplicaFault | None = None) -> None:
        """Lets go of the stream; after a fault the replica is set aside, and avoided by this session."""
        stream, self._stream, self._pace = self._stream, None, Pace()
        if stream is None:
            return
        self.bytes_sent += stream.bytes_sent
        self.bytes_received += stream.bytes_received
        stream.close()
        self._avoid = frozenset({stream.replica.address})
        self._left_for = "DRAINING" if fault is None else fault.reason
        if fault is not None and fault.reason != OVERLOADED and not stream.replica.draining:
            self._pool.report(stream.replica, fault)

    async def _open(self, tasks: asyncio.TaskGroup) -> CycleStream:
        if self._stream is None:
            await self._pool.wait_ready(self._limits.failover, fingerprint=self._fingerprint)
            replica = self._pool.pick(fingerprint=self._fingerprint, avoid=self._avoid)
            assert replica is not None, "a ready pool has a replica to pick"
            if self._left_for is not None:
                self._pool.reopened(self._left_for)
            self._stream = CycleStream(replica, replica.stub.Verify(), tasks)
            self._step_times = replica.info.step_times
        return self._stream

    def _budget(self) -> float:
        """Seconds for the next verification."""
        if len(self._pool.ready(fingerprint=self._fingerprint)) < 2:
            return self._limits.timeout
        return self._pace.budget(self._limits.timeout, GRACE, PATIENCE)

    async def _ask(
        self, stream: CycleStream, context: Context, draft: Draft, cycle: int, traceparent: str
    ) -> VerifyReply:
        form, info, budget = form_of(self._turn, draft), stream.replica.info, self._budget()
        layers = self._features.layers_for(info)
        told = budget_us(budget, self._limits.until, asyncio.get_running_loop().time())

        def build(offset: int, first: bool) -> VerifyRequest:
            first |= layers != self._told_layers
            self._told_layers = layers
            return VerifyRequest(
                cycle=cycle,
                offset=offset,
                token_ids=context.ids[offset:],
                tree=draft.tree,
                form=form,
                supports=tuple(law.ids for law in draft.laws) if form is VerifyForm.PQ else (),
                want_child_p=self._measures_alpha(draft),
                budget_us=told,
                traceparent=traceparent,
                open=replace(self._opening, feature_layers=layers) if first else None,
            )

        decode = partial(self._decode, feature_bytes=row_bytes(len(layers), info.hidden_size))
        exchange = Exchange(build, encode_verify_request, decode)
        return await stream.ask(exchange, context, cycle, budget)

    def _measures_alpha(self, draft: Draft) -> bool:
        """p(x) is the exact acceptance chance of a deterministic draft; p/q replies carry alpha anyway."""
        deterministic = draft.kind is DraftKind.CHOSEN and not draft.coupled
        return deterministic and draft.tree.num_draft_tokens > 0 and not self._turn.params.greedy

    def _checked(self, reply: VerifyReply, draft: Draft) -> Verification:
        """A refusal that names a field is the caller's mistake; any other is the replica's trouble."""
        result = reply.result
        if isinstance(result, Refusal):
            if result.field:
                raise InvalidArgument(result.field, result.reason, result.message)
            raise ReplicaFault(result.message, reason=result.reason)
        assert isinstance(result, Verification), "a stale reply was answered by the stream"
        check_verification(draft, result, form_of(self._turn, draft), self._limits.vocab_size)
        return result


def _final(fault: ReplicaFault) -> SpecdecError:
    message = f"no sound verification in {ATTEMPTS} attempts; the last: {fault}"
    if fault.reason == OVERLOADED:
        return ResourceExhausted(message)
    if fault.reason in ("REPLICA_LOST", "REPLICA_LATE"):
        return Unavailable(message, reason="NO_TARGET")
    return SpecdecError(message, reason=fault.reason)
