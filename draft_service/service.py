"""DraftService: many streams in, one batch per drafter at a time."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial

from draft_service.config import DraftConfig
from draft_service.drafters import DraftJob, DraftModel
from draft_service.lane import Lane, Outcome
from draft_service.session import DraftSession
from protos import common_pb2, draft_pb2, draft_pb2_grpc
from specdec.core.draft import Draft
from specdec.core.errors import InvalidArgument, SpecdecError, Unavailable
from specdec.core.features import row_bytes
from specdec.edge import telemetry as names
from specdec.edge.batcher import Served
from specdec.edge.config import describe
from specdec.edge.draft_codec import decode_draft_request, encode_draft_reply
from specdec.edge.errors import Context
from specdec.edge.info_codec import encode_info
from specdec.edge.messages import (
    DrafterInfo,
    DraftReply,
    DraftRequest,
    Load,
    OpenSession,
    Refusal,
    ReplicaInfo,
    StaleContext,
    Timing,
)
from specdec.edge.telemetry import ReplicaMetrics, Telemetry

_ANY_ID = 1 << 32  # the vocabulary of a replica that fits any target

Answer = Draft | StaleContext | Refusal


class UnknownDrafter(InvalidArgument):
    """The session asks for a drafter that this replica does not serve."""

    reason = "UNKNOWN_DRAFTER"


class DraftService(draft_pb2_grpc.DraftServiceServicer):
    """Serves nothing before `lanes`, entered by their owner, are given: loading a model takes a while, and health says
    so meanwhile."""

    def __init__(
        self,
        config: DraftConfig,
        telemetry: Telemetry,
        metrics: ReplicaMetrics,
        *,
        replica_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._telemetry = telemetry
        self._metrics = metrics
        self._replica_id = replica_id
        self._clock = clock
        self._lanes: Mapping[str, Lane] = {}
        self._streams = 0
        self.draining = False

    def open(self, lanes: Mapping[str, Lane]) -> None:
        """lanes: by drafter name, the default first."""
        self._lanes = lanes
        metrics = self._metrics
        metrics.sessions.set(lambda: self._streams)
        metrics.queue_depth.set(lambda: self.load().queued)
        metrics.running.set(lambda: self.load().running)
        metrics.kv_used_tokens.set(lambda: self.load().kv_total - self.load().kv_free)
        metrics.kv_total_tokens.set(lambda: self.load().kv_total)

    async def drain(self) -> None:
        """From now on every reply says so: coordinators move their sessions, which close these streams."""
        self.draining = True

    def load(self) -> Load:
        lanes = self._lanes.values()
        return Load(
            queued=sum(lane.queued for lane in lanes),
            running=sum(lane.running for lane in lanes),
            kv_free=sum(lane.drafter.kv_free for lane in lanes),
            kv_total=sum(lane.drafter.kv_total for lane in lanes),
            draining=self.draining,
        )

    async def Info(self, request: common_pb2.InfoRequest, context: Context) -> common_pb2.ReplicaInfo:
        self._check_open()
        model = self._model
        info = ReplicaInfo(
            role="draft",
            replica_id=self._replica_id,
            vocab_size=model.vocab_size,
            tokenizer_hash=model.tokenizer_hash,
            model_fingerprint=model.fingerprint,
            model_name=model.name,
            dtype=model.dtype,
            max_context=model.max_context,
            max_nodes=self._config.max_draft_tokens,
            token_budget=self._config.token_budget,
            eos_ids=model.eos_ids,
            drafters=(*self._lanes,),
            load=self.load(),
            config=describe(self._config),
            drafter_infos=tuple(_drafter_info(name, lane.drafter.model) for name, lane in self._lanes.items()),
        )
        return encode_info(info)

    async def Draft(self, requests: AsyncIterator[draft_pb2.DraftRequest], context: Context) -> None:
        self._check_open()
        session = DraftSession()
        self._streams += 1
        try:
            async for message in requests:
                await context.write(encode_draft_reply(await self._reply(session, message)))
        finally:
            self._streams -= 1
            await self._close(session)

    @property
    def _model(self) -> DraftModel:
        """The replica's: that of the first drafter which has weights, else the first with a vocabulary."""
        models = [lane.drafter.model for lane in self._lanes.values()]
        return max(models, key=lambda model: (bool(model.fingerprint), bool(model.vocab_size)))

    def _check_open(self) -> None:
        if not self._lanes:
            raise Unavailable("the drafters are loading", reason="LOADING")

    async def _reply(self, session: DraftSession, message: draft_pb2.DraftRequest) -> DraftReply:
        arrived, start_ns = self._clock(), time.time_ns()
        session.computed_tokens = 0
        timing = Timing()
        result: Answer
        try:
            result, served = await self._result(session, message, arrived)
            if served is not None:
                timing = _timing(served, session.computed_tokens)
                self._metrics.queue_seconds.record(served.queue_seconds)
        except SpecdecError as error:
            self._metrics.refusals.add(reason=error.reason)
            result = Refusal(error.reason, str(error), error.field if isinstance(error, InvalidArgument) else "")
        reply = DraftReply(message.cycle, result, timing, self.load())
        self._record(session, message, reply, start_ns)
        return reply

    async def _result(
        self, session: DraftSession, message: draft_pb2.DraftRequest, arrived: float
    ) -> tuple[Answer, Served[Outcome] | None]:
        """Raises SpecdecError where this one message cannot be served."""
        request = decode_draft_request(message, vocab_size=self._model.vocab_size or _ANY_ID)
        if request.open is not None:
            await self._reopen(session, request.open)
        if session.opening is None:
            raise InvalidArgument("open", None, "the first message of a stream must open the session")
        lane = self._lane(session.opening)
        model = lane.drafter.model
        feature_bytes = row_bytes(len(model.feature_layers), model.feature_size)
        if (stale := session.advance(request, feature_bytes)) is not None:
            self._metrics.stale_contexts.add()
            return stale, None
        job = self._job(session, session.opening, request, arrived)
        served = await lane.serve(job)
        assert isinstance(served.result, Draft), "errors are raised by the lane"
        return served.result, served

    async def _reopen(self, session: DraftSession, opening: OpenSession) -> None:
        before = session.opening
        session.reopen(opening)
        if before is not None and before.drafter != opening.drafter:
            await self._forget(session, before)

    async def _close(self, session: DraftSession) -> None:
        """Whatever the stream died of, its session is forgotten, after the forward that may hold it."""
        if session.opening is not None:
            with suppress(Unavailable):  # shutting down: everything is forgotten
                await self._forget(session, session.opening)

    async def _forget(self, session: DraftSession, opening: OpenSession) -> None:
        with suppress(UnknownDrafter):
            lane = self._lane(opening)
            await lane.call(partial(lane.drafter.close, session))

    def _lane(self, opening: OpenSession) -> Lane:
        """The drafter that the session asks for, the replica's first if it names none."""
        name = opening.drafter or next(iter(self._lanes))
        if name not in self._lanes:
            raise UnknownDrafter("open.drafter", name, f"this replica serves {', '.join(self._lanes)}")
        return self._lanes[name]

    def _job(self, session: DraftSession, opening: OpenSession, request: DraftRequest, arrived: float) -> DraftJob:
        return DraftJob(
            session=session,
            context=session.context,
            num_draft_tokens=min(request.num_draft_tokens, self._config.max_draft_tokens),
            params=opening.params,
            kind=request.kind,
            support=min(request.support, self._config.max_support),
            seed=opening.seed,
            turn_start=opening.turn_start,
            deadline=arrived + request.budget_us / 1e6 if request.budget_us else math.inf,
        )

    def _record(self, session: DraftSession, message: draft_pb2.DraftRequest, reply: DraftReply, start_ns: int) -> None:
        """The span draft.propose, from the message's arrival to its reply, for the trace that asked."""
        if not message.traceparent:
            return
        opening, result = session.opening, reply.result
        drafted = result.tree.num_draft_tokens if isinstance(result, Draft) else 0
        attributes: dict[str, str | int] = {
            names.SESSION_ID: opening.session_id if opening else "",
            names.CYCLE: message.cycle,
            names.REPLICA_ID: self._replica_id,
            names.DRAFTER: opening.drafter if opening else "",
            names.NUM_DRAFT_TOKENS: drafted,
            names.CONTEXT_LENGTH: len(session.context),
            names.BATCH_SIZE: reply.timing.batch_size,
            names.QUEUE_US: reply.timing.queue_us,
            names.COMPUTE_US: reply.timing.compute_us,
        }
        self._telemetry.record_span(names.SPAN_PROPOSE, message.traceparent, start_ns, time.time_ns(), attributes)


def _drafter_info(name: str, model: DraftModel) -> DrafterInfo:
    return DrafterInfo(name, model.tree, model.feature_layers, model.feature_size, model.target_base_fingerprint)


def _timing(served: Served[Outcome], computed_tokens: int) -> Timing:
    return Timing(
        queue_us=round(served.queue_seconds * 1e6),
        compute_us=round(served.compute_seconds * 1e6),
        batch_size=served.batch_size,
        computed_tokens=computed_tokens,
    )
