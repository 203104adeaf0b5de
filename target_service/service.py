"""TargetService: many streams in, one ragged forward at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

from protos import common_pb2, target_pb2, target_pb2_grpc
from specdec.core.errors import InvalidArgument, SpecdecError, Unavailable
from specdec.edge import telemetry as names
from specdec.edge.batcher import MicroBatcher
from specdec.edge.codec import encode_info
from specdec.edge.config import describe
from specdec.edge.errors import Context
from specdec.edge.messages import Load, OpenSession, Refusal, ReplicaInfo, StaleContext, Timing, VerifyReply
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.edge.verify_codec import decode_verify_request, encode_verify_reply
from specdec.lm.loading import LoadedModel
from target_service.config import TargetConfig
from target_service.engine import Engine
from target_service.session import TargetSession, VerifyJob, VerifyResult

Batcher = MicroBatcher[VerifyJob, VerifyResult]


class TargetService(target_pb2_grpc.TargetServiceServicer):
    """Serves nothing before `open`: loading a model takes a while, and health says so meanwhile."""

    def __init__(self, config: TargetConfig, telemetry: Telemetry, metrics: ReplicaMetrics, *, replica_id: str) -> None:
        self._config = config
        self._telemetry = telemetry
        self._metrics = metrics
        self._replica_id = replica_id
        self._engine: Engine | None = None
        self._draining = False

    def open(self, engine: Engine, batcher: Batcher, loaded: LoadedModel) -> None:
        """batcher: entered by its owner; it alone drives the engine."""
        self._engine, self._batcher, self._loaded = engine, batcher, loaded
        metrics = self._metrics
        metrics.sessions.set(lambda: engine.num_sessions)
        metrics.queue_depth.set(lambda: batcher.queued)
        metrics.running.set(lambda: batcher.running)
        metrics.kv_used_tokens.set(lambda: engine.kv_total - engine.kv_free)
        metrics.kv_total_tokens.set(lambda: engine.kv_total)

    async def drain(self) -> None:
        """From now on every reply says so: coordinators move their sessions, which close these streams."""
        self._draining = True

    def load(self) -> Load:
        engine = self._opened()
        return Load(
            queued=self._batcher.queued,
            running=self._batcher.running,
            kv_free=engine.kv_free,
            kv_total=engine.kv_total,
            draining=self._draining,
        )

    async def Info(self, request: common_pb2.InfoRequest, context: Context) -> common_pb2.ReplicaInfo:
        limits, loaded = self._opened().limits, self._loaded
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
            config=describe(self._config),
        )
        return encode_info(info)

    async def Verify(self, requests: AsyncIterator[target_pb2.VerifyRequest], context: Context) -> None:
        self._opened()
        stream = _Stream()
        try:
            async for message in requests:
                await context.write(encode_verify_reply(await self._reply(stream, message)))
        finally:
            await self._close(stream)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise Unavailable("the model is loading", reason="LOADING")
        return self._engine

    async def _reply(self, stream: _Stream, message: target_pb2.VerifyRequest) -> VerifyReply:
        start_ns = time.time_ns()
        timing, result = Timing(), VerifyResult(Refusal("", ""))
        try:
            timing, result = await self._result(stream, message)
        except SpecdecError as error:
            field = error.field if isinstance(error, InvalidArgument) else ""
            result = VerifyResult(Refusal(error.reason, str(error), field))
        if isinstance(result.result, Refusal):
            self._metrics.refusals.add(reason=result.result.reason)
        elif isinstance(result.result, StaleContext):
            self._metrics.stale_contexts.add()
        self._record(stream, message, timing, start_ns)
        return VerifyReply(message.cycle, result.result, timing, self.load())

    async def _result(self, stream: _Stream, message: target_pb2.VerifyRequest) -> tuple[Timing, VerifyResult]:
        """Raises SpecdecError where this one message cannot be served."""
        engine = self._opened()
        request = decode_verify_request(message, vocab_size=engine.vocab_size, max_nodes=engine.limits.max_nodes)
        if stream.session is None:
            if request.open is None:
                raise InvalidArgument("open", None, "the first message of a stream must open the session")
            stream.opening = request.open
            await self._batcher.call(partial(stream.enter, engine, request.open))
        assert stream.session is not None, "opened above"
        served = await self._batcher.serve(VerifyJob(stream.session, request))
        self._metrics.queue_seconds.record(served.queue_seconds)
        timing = Timing(
            queue_us=round(served.queue_seconds * 1e6),
            compute_us=round(served.compute_seconds * 1e6),
            batch_size=served.result.batch_size,
            computed_tokens=served.result.computed_tokens,
        )
        return timing, served.result

    async def _close(self, stream: _Stream) -> None:
        """Whatever the stream died of, its session is parked, after the forward that may hold it."""
        with suppress(Unavailable):  # shutting down: everything is dropped
            await self._batcher.call(partial(stream.leave, self._opened()))

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


class _Stream:
    """One stream's session. Entered and left on the compute thread: a stream that is cancelled while it enters is
    still left afterwards, so no session outlives its stream."""

    def __init__(self) -> None:
        self.opening: OpenSession | None = None
        self.session: TargetSession | None = None

    def enter(self, engine: Engine, opening: OpenSession) -> None:
        """Raises ResourceExhausted."""
        self.session = engine.open(opening)

    def leave(self, engine: Engine) -> None:
        if self.session is not None:
            engine.close(self.session)
