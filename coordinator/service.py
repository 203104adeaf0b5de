"""GenerationService: admits requests, opens their sessions, runs their choices, streams what they commit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import grpc.aio
from opentelemetry.trace import Span, SpanKind

from coordinator.admission import admit
from coordinator.choice import Choice, Wiring
from coordinator.config import CoordinatorConfig
from coordinator.drafting import OWN
from coordinator.drift import DriftWatch
from coordinator.experience import Experience
from coordinator.keys import Caller, Keys
from coordinator.opening import Opening
from coordinator.pool import Pool
from coordinator.quota import Quota
from coordinator.responses import Used, Writer
from coordinator.served import ServedDrafters
from coordinator.store.protocol import SessionStore
from coordinator.tokenizer import TextCodec
from coordinator.turn_request import VERIFICATIONS, Limits
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from specdec.core.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SpecdecError,
    Unauthenticated,
)
from specdec.edge import telemetry as names
from specdec.edge.config import describe
from specdec.edge.errors import leaves
from specdec.edge.tasks import TaskGroup
from specdec.edge.telemetry import Attributes, CoordinatorMetrics, Telemetry, traceparent

# Of a call that ended in nothing but these; anything else is an error. Whoever was superseded goes on at another
# coordinator, and what callers do wrong is not ours to answer for.
OUTCOMES: Mapping[str, type[SpecdecError] | tuple[type[SpecdecError], ...]] = {
    "cancelled": Aborted,
    "refused": (FailedPrecondition, InvalidArgument, NotFound, Unauthenticated),
    "overloaded": ResourceExhausted,
}


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    def __init__(
        self,
        config: CoordinatorConfig,
        codec: TextCodec,
        store: SessionStore,
        targets: Pool,
        drafters: Pool,
        telemetry: Telemetry,
        metrics: CoordinatorMetrics,
        keys: Keys | None = None,
    ) -> None:
        """keys: None: anyone may call. Raises ConfigError where config.profile cannot be read."""
        self._keys = keys or Keys(None)
        self._quota = Quota()
        drift = DriftWatch.of(config.profile, metrics)
        experience = Experience(lambda: len(targets.ready()))
        served = ServedDrafters(drafters, targets)
        self._wiring = Wiring(config, codec, store, targets, drafters, served, telemetry, metrics, drift, experience)
        self._opening = Opening(store, codec, targets.serves)
        self._active = 0
        metrics.active_streams.set(lambda: self._active)
        metrics.speculation_enabled.set(lambda: int(not self._disabled_reason()))

    async def Info(self, request: Any, context: Any) -> pb.ServiceInfo:
        self._keys.caller(_metadata(context).get("authorization"))
        target = self._wiring.targets.best()
        info = target.info if target is not None else None
        disabled = self._disabled_reason()
        return pb.ServiceInfo(
            model_name=info.model_name if info else self._wiring.config.model,
            model_fingerprint=info.model_fingerprint if info else "",
            dtype=info.dtype if info else "",
            vocab_size=self._wiring.codec.vocab_size,
            max_context=self._max_context(),
            drafters=self._served_drafters(),
            verifications=VERIFICATIONS,
            ready_drafters=len(self._wiring.drafters.ready()),
            ready_verifiers=len(self._wiring.targets.ready()),
            speculation_enabled=not disabled,
            speculation_disabled_reason=disabled,
            config=describe(self._wiring.config),
        )

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:
        """Coroutine style: a generator that yields inside a task group could be closed from outside it."""
        metadata = _metadata(context)
        caller = self._keys.caller(metadata.get("authorization"))
        if self._active >= self._wiring.config.max_streams:
            self._wiring.metrics.requests.add(outcome="overloaded")
            raise ResourceExhausted(f"{self._active} generations are running: the limit is max_streams")
        with self._quota.stream(caller) as used:
            await self._counted(request, context, caller, used, metadata.get("traceparent"))

    async def _counted(
        self, request: pb.GenerateRequest, context: Any, caller: Caller, used: Used, parent: str | None
    ) -> None:
        self._active += 1
        outcome, began = "ok", asyncio.get_running_loop().time()
        try:
            with self._wiring.telemetry.span(names.SPAN_GENERATE, parent=parent, kind=SpanKind.SERVER) as span:
                if span.is_recording():
                    span.set_attributes(self._request_attributes(request))
                await self._in_time(self._serve(request, Writer(context, used), span, began, caller, used))
        except BaseException as error:
            outcome = _outcome(error)
            raise
        finally:
            self._active -= 1
            self._wiring.metrics.requests.add(outcome=outcome)
            self._wiring.metrics.request_duration.record(asyncio.get_running_loop().time() - began)

    async def _in_time(self, work: Awaitable[None]) -> None:
        limit = self._wiring.config.request_timeout
        try:
            async with asyncio.timeout(limit):
                await work
        except TimeoutError:
            raise DeadlineExceeded(f"not done within request_timeout = {limit} s") from None

    async def _serve(
        self, request: pb.GenerateRequest, writer: Writer, span: Span, began: float, caller: Caller, used: Used
    ) -> None:
        await self._wiring.targets.wait_ready(self._wiring.config.failover_timeout)
        # From here on nothing waits for verifiers: what they take, and one of them to begin with, is settled now.
        target, limits, max_k = self._wiring.targets.best(), self._limits(), self._max_k()
        assert target is not None, "a ready pool has a replica to pick"
        codec = self._wiring.codec
        admitted = await asyncio.to_thread(admit, request, codec, limits, lambda: secrets.randbits(64))
        if admitted.kind == "resume":
            self._wiring.metrics.resumes.add()
        choices: list[Choice] = []

        async def serve(index: int) -> None:
            opened = await self._opening.open(admitted, index, target.info, limits.max_context, caller.name)
            if admitted.kind != "resume":
                used(opened.record.turn_start)
            choice = Choice(
                self._wiring,
                opened,
                index,
                writer,
                max_context=limits.max_context,
                max_k=max_k,
                trace=traceparent(span),
                began=began,
                until=self._until(writer, began),
                cache_salt=caller.cache_salt,
            )
            choices.append(choice)
            await choice.run()

        try:
            async with TaskGroup() as tasks:
                for index in range(max(1, len(admitted.turns))):
                    tasks.create_task(serve(index), name=f"choice-{index}")
        finally:
            if choices and span.is_recording():
                span.set_attributes(_outcome_attributes(choices))

    def _until(self, writer: Writer, began: float) -> float:
        """When nobody wants any more of the request, by the loop's clock: the caller's deadline or our own."""
        now = asyncio.get_running_loop().time()
        return min(began + self._wiring.config.request_timeout, now + writer.time_remaining())

    def _limits(self) -> Limits:
        return Limits(self._max_context(), self._wiring.config.max_draft_tokens, self._served_drafters())

    def _max_context(self) -> int:
        """What every verifier holds, so that any of them can take a session over."""
        limits = [replica.info.max_context for replica in self._wiring.targets.members()]
        if self._wiring.config.max_context is not None:
            limits.append(self._wiring.config.max_context)
        return min(limits, default=0)

    def _max_k(self) -> int:
        """What every verifier takes in one message; 0 where there are no drafters to ask."""
        if self._disabled_reason():
            return 0
        limits = [replica.info.max_nodes for replica in self._wiring.targets.members()]
        return min([self._wiring.config.max_draft_tokens, *limits])

    def _served_drafters(self) -> tuple[str, ...]:
        """Those of lost replicas too: a request that names one goes on without it."""
        if self._disabled_reason():
            return ()
        return tuple(dict.fromkeys([*self._wiring.drafters.drafters_seen(), OWN]))

    def _disabled_reason(self) -> str:
        if not self._wiring.config.draft_addresses:
            return "no draft_addresses"
        if self._wiring.config.max_draft_tokens == 0:
            return "max_draft_tokens is 0"
        return ""

    def _request_attributes(self, request: pb.GenerateRequest) -> Mapping[str, Any]:
        given = {
            names.OPERATION_NAME: "generate_content",
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: self._wiring.config.model,
        }
        optional = {
            "temperature": names.REQUEST_TEMPERATURE,
            "top_p": names.REQUEST_TOP_P,
            "top_k": names.REQUEST_TOP_K,
            "max_tokens": names.REQUEST_MAX_TOKENS,
        }
        set_fields = {field.name: value for field, value in request.ListFields()}
        return given | {label: set_fields[name] for name, label in optional.items() if name in set_fields}


def _metadata(context: Any) -> dict[str, str]:
    return dict(context.invocation_metadata() or ())


def _outcome(error: BaseException) -> str:
    if _is_departure(error):
        return "cancelled"
    found = list(leaves(error))
    return next((name for name, kind in OUTCOMES.items() if all(isinstance(e, kind) for e in found)), "error")


def _is_departure(error: BaseException) -> bool:
    """A write that fails is how some cancellations are first heard of."""
    group = isinstance(error, BaseExceptionGroup) and error.subgroup(grpc.aio.BaseError) is not None
    return group or isinstance(error, asyncio.CancelledError)


def _outcome_attributes(choices: Sequence[Choice]) -> Attributes:
    """Of what the client got, also where the request was cut short. Several choices count as one answer."""
    record = choices[0].record
    return {
        names.SESSION_ID: record.session_id,
        names.CONVERSATION_ID: record.session_id,
        names.REQUEST_SEED: str(record.turn.seed),  # 64 unsigned bits: more than an attribute's number holds
        names.VERIFICATION: record.turn.rule,
        names.DRAFTER: record.turn.drafter or "auto",
        names.RESPONSE_FINISH_REASONS: [choice.finish or "cancelled" for choice in choices],
        names.INPUT_TOKENS: record.turn_start,
        names.OUTPUT_TOKENS: sum(choice.sent for choice in choices),
    }
