"""TargetService: many streams in, one ragged batch at a time."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from protos import common_pb2, target_pb2, target_pb2_grpc
from specdec.core.errors import InvalidArgument, SpecdecError, Unavailable
from specdec.edge import telemetry as names
from specdec.edge.batcher import MicroBatcher, Served
from specdec.edge.config import describe
from specdec.edge.errors import Context
from specdec.edge.info_codec import encode_info
from specdec.edge.messages import (
    Load,
    OpenSession,
    Refusal,
    ReplicaInfo,
    StaleContext,
    Timing,
    VerifyReply,
    VerifyRequest,
)
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.edge.verify_codec import decode_verify_request, encode_verify_reply
from specdec.lm.loading import LoadedModel
from specdec.lm.network import BLOCK
from target_service.company import Company
from target_service.config import TargetConfig
from target_service.engine import Engine, ForwardReport
from target_service.session import TargetSession, VerifyJob, VerifyResult
from target_service.sharing import KVSharing

Batcher = MicroBatcher[VerifyJob, VerifyResult]


@dataclass(slots=True, eq=False)
class _Stream:
    """session: set and read on the compute thread only, so that a call that is cancelled while it opens one still
    closes it. filled: blocks of its context that were full when it was last answered."""

    opening: OpenSession | None = None
    session: TargetSession | None = None
    filled: int = 0


class TargetService(target_pb2_grpc.TargetServiceServicer):
    """Serves nothing before `open`: loading a model takes a while, and health says so meanwhile."""

    def __init__(self, config: TargetConfig, telemetry: Telemetry, metrics: ReplicaMetrics, *, replica_id: str) -> None:
        self._config = config
        self._telemetry = telemetry
        self._metrics = metrics
        self._replica_id = replica_id
        self._company = Company()
        self._streams = 0
        self._ready = False
        self.draining = False

    def open(self, loaded: LoadedModel, engine: Engine, batcher: Batcher, sharing: KVSharing | None = None) -> None:
        """batcher: entered by its owner, its step the engine's. sharing: None: KV stays in this process."""
        self._sharing = sharing
        self._loaded = loaded
        self._engine = engine
        self._batcher = batcher
        self._ready = True
        metrics = self._metrics
        metrics.token_budget.set(lambda: engine.schedule.budget)
        metrics.sessions.set(lambda: self._streams)
        metrics.queue_depth.set(lambda: batcher.queued)
        metrics.running.set(lambda: batcher.running)
        metrics.kv_used_tokens.set(lambda: engine.kv_total - engine.kv_free)
        metrics.kv_total_tokens.set(lambda: engine.kv_total)

    async def drain(self) -> None:
        """What others will need is stored; from then on every reply says so: coordinators move their sessions, which
        close these streams."""
        try:
            if self._ready and self._sharing is not None:
                await self._sharing.hand_over(self._batcher, lambda: self._engine.sessions)
        finally:
            self.draining = True

    def load(self) -> Load:
        batcher, engine = self._batcher, self._engine
        return Load(batcher.queued, batcher.running, engine.kv_free, engine.kv_total, self.draining)

    def patience(self, jobs: list[VerifyJob]) -> float:
        """Seconds that the next forward waits for sessions that are about to be back."""
        times = self._engine.schedule.times
        if not times.measured:
            return 0.0
        held = sum(len(job.session.context) for job in jobs) / len(jobs)
        return self._company.patience([_rows(job.request) for job in jobs], times.table, held, self._stepped)

    @property
    def _stepped(self) -> float:
        return math.inf if self._batcher.under_way else self._batcher.last_step_finished_at

    async def Info(self, request: common_pb2.InfoRequest, context: Context) -> common_pb2.ReplicaInfo:
        self._check_ready()
        loaded, limits, schedule = self._loaded, self._engine.limits, self._engine.schedule
        info = ReplicaInfo(
            role="target",
            replica_id=self._replica_id,
            vocab_size=loaded.vocab_size,
            tokenizer_hash=loaded.tokenizer_hash,
            model_fingerprint=loaded.fingerprint,
            model_name=loaded.name,
            dtype=loaded.dtype,
            max_context=limits.max_context,
            max_nodes=limits.max_nodes,
            token_budget=limits.token_budget,
            eos_ids=loaded.eos_ids,
            load=self.load(),
            config=describe(replace(self._config, token_budget=schedule.budget, step_target=schedule.step_target)),
            step_times=schedule.times.table if schedule.times.measured else None,
            num_layers=loaded.num_layers,
            hidden_size=loaded.hidden_size,
            base_fingerprint=loaded.base_fingerprint,
        )
        return encode_info(info)

    async def Verify(self, requests: AsyncIterator[target_pb2.VerifyRequest], context: Context) -> None:
        self._check_ready()
        stream = _Stream()
        self._streams += 1
        try:
            async for message in requests:
                await context.write(encode_verify_reply(await self._reply(stream, message)))
        finally:
            self._streams -= 1
            self._company.gone(stream)
            with suppress(Unavailable):  # shutting down: everything is forgotten
                await self._batcher.call(lambda: self._close(stream))

    def _check_ready(self) -> None:
        if not self._ready:
            raise Unavailable("the model is loading", reason="LOADING")

    async def _reply(self, stream: _Stream, message: target_pb2.VerifyRequest) -> VerifyReply:
        start_ns = time.time_ns()
        timing, features = Timing(), None
        try:
            served = await self._served(stream, message)
            result, features = served.result.result, served.result.features
            timing = _timing(served)
            self._metrics.queue_seconds.record(served.queue_seconds)
        except SpecdecError as error:
            result = Refusal(error.reason, str(error), error.field if isinstance(error, InvalidArgument) else "")
        if isinstance(result, Refusal):
            self._metrics.refusals.add(reason=result.reason)
        if isinstance(result, StaleContext):
            self._metrics.stale_contexts.add()
        reply = VerifyReply(message.cycle, result, timing, self.load(), features)
        self._record(stream, message, timing, start_ns)
        return reply

    async def _served(self, stream: _Stream, message: target_pb2.VerifyRequest) -> Served[VerifyResult]:
        """Raises SpecdecError where this one message cannot be served."""
        limits = self._engine.limits
        request = decode_verify_request(message, vocab_size=self._loaded.vocab_size, max_nodes=limits.max_nodes)
        if stream.session is None:
            if request.open is None:
                raise InvalidArgument("open", None, "the first message of a stream must open the session")
            opening = request.open
            session = await self._batcher.call(lambda: self._open(stream, opening))
            await self._bring(request, opening.cache_salt)
        else:
            session = stream.session
        stream.opening = request.open or stream.opening
        self._company.came(stream, _rows(request), self._stepped)
        try:
            served = await self._batcher.serve(VerifyJob(session, request))
        finally:
            self._company.left(stream)
        self._share(stream, session, (request.offset + len(request.token_ids)) // BLOCK)
        return served

    def _share(self, stream: _Stream, session: TargetSession, filled: int) -> None:
        """Blocks that have become full go to the KV tier behind the answer, not before it."""
        if self._sharing is not None and filled > stream.filled:
            self._batcher.post(partial(self._sharing.keep, session))
        stream.filled = filled

    async def _bring(self, request: VerifyRequest, salt: bytes) -> None:
        """KV of a context that begins here, from where it was before. A stale offset is answered in its turn."""
        if self._sharing is None or request.offset:
            return
        start_ns = time.time_ns()
        tokens = await self._sharing.bring(self._batcher, request.token_ids, salt)
        if tokens and request.traceparent:
            attributes: dict[str, str | int] = {names.REPLICA_ID: self._replica_id, names.KV_TOKENS: tokens}
            self._telemetry.record_span(names.SPAN_KV_FETCH, request.traceparent, start_ns, time.time_ns(), attributes)

    def _open(self, stream: _Stream, opening: OpenSession) -> TargetSession:
        stream.session = self._engine.open(opening)
        return stream.session

    def _close(self, stream: _Stream) -> None:
        if stream.session is not None:
            self._engine.close(stream.session)

    def _record(self, stream: _Stream, message: target_pb2.VerifyRequest, timing: Timing, start_ns: int) -> None:
        """The span target.forward, from the message's arrival to its reply, for the trace that asked."""
        if not message.traceparent:
            return
        attributes: dict[str, str | int] = {
            names.SESSION_ID: stream.opening.session_id if stream.opening else "",
            names.CYCLE: message.cycle,
            names.REPLICA_ID: self._replica_id,
            names.NUM_DRAFT_TOKENS: len(message.draft_token_ids) // 4,
            names.CONTEXT_LENGTH: message.offset + len(message.token_ids) // 4,
            names.BATCH_SIZE: timing.batch_size,
            names.QUEUE_US: timing.queue_us,
            names.COMPUTE_US: timing.compute_us,
        }
        self._telemetry.record_span(names.SPAN_FORWARD, message.traceparent, start_ns, time.time_ns(), attributes)


def _rows(request: VerifyRequest) -> int:
    """Rows that the coordinator has for it; those that the engine has lost meanwhile come on top."""
    return max(1, len(request.token_ids) + request.tree.num_draft_tokens)


def _timing(served: Served[VerifyResult]) -> Timing:
    return Timing(
        queue_us=round(served.queue_seconds * 1e6),
        compute_us=round(served.compute_seconds * 1e6),
        batch_size=served.result.batch_size,
        computed_tokens=served.result.computed_tokens,
        batch_rows=served.result.batch_rows,
    )


def record_forward(metrics: ReplicaMetrics, report: ForwardReport) -> None:
    """The engine's report of one forward, as metrics."""
    metrics.forwards.add()
    metrics.rows.add(report.rows)
    metrics.draws.add(report.draws)
    metrics.batch_size.record(report.jobs)
    metrics.compute_seconds.record(report.seconds)
    metrics.kv_hit_tokens.add(report.kv_hits, tier="memory")
    metrics.kv_hit_tokens.add(report.prefix_hits, tier="prefix")
    metrics.kv_evictions.add(report.evictions)
