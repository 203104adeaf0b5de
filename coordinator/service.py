"""GenerationService: admits requests, opens their sessions, runs their choices, streams what they commit."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import SpanKind

from coordinator.admission import Admitted, admit
from coordinator.config import CoordinatorConfig
from coordinator.cycle import Cycle
from coordinator.drafting import Drafting, DraftLimits
from coordinator.generation import Generation
from coordinator.opening import Opened, Opening
from coordinator.pool import Pool
from coordinator.responses import Writer, chunk, complete, replayed, started
from coordinator.stats import Stats
from coordinator.stopping import TurnOutput
from coordinator.store.protocol import SessionStore
from coordinator.tokenizer import TextCodec
from coordinator.turn_request import VERIFICATIONS, Limits
from coordinator.verifying import Verifying, VerifyLimits
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from specdec.core.errors import DeadlineExceeded, ResourceExhausted, SpecdecError
from specdec.edge import telemetry as names
from specdec.edge.config import describe
from specdec.edge.messages import OpenSession
from specdec.edge.telemetry import CoordinatorMetrics, Telemetry, traceparent

log = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE = 3
INDEPENDENT = "ngram"  # the drafter that the coordinator has itself


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
    ) -> None:
        self._config = config
        self._codec = codec
        self._store = store
        self._targets = targets
        self._drafters = drafters
        self._telemetry = telemetry
        self._metrics = metrics
        self._opening = Opening(store, codec, targets)
        self._active = 0
        metrics.active_streams.set(lambda: self._active)
        metrics.speculation_enabled.set(lambda: int(not self._disabled_reason()))

    async def Info(self, request: Any, context: Any) -> pb.ServiceInfo:
        target = self._targets.pick()
        info = target.info if target is not None else None
        disabled = self._disabled_reason()
        return pb.ServiceInfo(
            model_name=info.model_name if info else self._config.model,
            model_fingerprint=info.model_fingerprint if info else "",
            dtype=info.dtype if info else "",
            vocab_size=self._codec.vocab_size,
            max_context=self._max_context(),
            drafters=self._served_drafters(),
            verifications=VERIFICATIONS,
            ready_drafters=len(self._drafters.ready()),
            ready_verifiers=len(self._targets.ready()),
            speculation_enabled=not disabled,
            speculation_disabled_reason=disabled,
            config=describe(self._config),
        )

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:
        """Coroutine style: a generator that yields inside a task group could be closed from outside it."""
        if self._active >= self._config.max_streams:
            raise ResourceExhausted(f"{self._active} generations are running: the limit is max_streams")
        self._active += 1
        outcome = "error"
        start = asyncio.get_running_loop().time()
        caller = dict(context.invocation_metadata() or ()).get("traceparent")
        try:
            with self._telemetry.span(names.SPAN_GENERATE, parent=caller, kind=SpanKind.SERVER) as span:
                if span.is_recording():
                    span.set_attributes(self._request_attributes(request))
                async with asyncio.timeout(self._config.request_timeout):
                    await self._serve(request, Writer(context), span)
            outcome = "ok"
        except TimeoutError:
            raise DeadlineExceeded(f"not done within request_timeout = {self._config.request_timeout} s") from None
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._active -= 1
            self._metrics.requests.add(outcome=outcome)
            self._metrics.request_duration.record(asyncio.get_running_loop().time() - start)

    async def _serve(self, request: pb.GenerateRequest, writer: Writer, span: Any) -> None:
        await self._targets.wait_ready(self._config.failover_timeout)
        admitted = await asyncio.to_thread(admit, request, self._codec, self._limits(), lambda: secrets.randbits(64))
        if admitted.kind == "resume":
            self._metrics.resumes.add()
        async with asyncio.TaskGroup() as tasks:
            for index in range(max(1, len(admitted.turns))):
                tasks.create_task(self._choice(admitted, index, writer, span), name=f"choice-{index}")

    async def _choice(self, admitted: Admitted, index: int, writer: Writer, span: Any) -> None:
        opened = await self._opening.open(admitted, index, self._max_context())
        record = opened.record
        finished = False
        try:
            await writer.write(started(record, index))
            await self._run(opened, index, writer, span)
            finished = True
        finally:
            # A turn that ended gave its lease back with its last commit; a replayed one, or a broken one, must.
            if not finished or record.finish is not None:
                await self._release(record.session_id, record.epoch)

    async def _run(self, opened: Opened, index: int, writer: Writer, span: Any) -> None:
        record = opened.record
        turn, start = record.turn, asyncio.get_running_loop().time()
        output = TurnOutput(turn, self._codec.pieces, record.token_ids[: record.turn_start], self._max_context())
        stop = ""
        if len(record.output_ids):
            emission = output.accept(record.output_ids)
            stop = emission.stop
            if len(emission.token_ids) > opened.received:
                await writer.write(replayed(emission, index, opened.received))
        stats, traffic = Stats(), (0, 0)
        if output.finish is None:

            async def emit(cycle: Cycle) -> None:
                nonlocal stop
                stop = cycle.emission.stop
                await writer.write(chunk(cycle, index, record.turn_start, turn.params.logprobs))

            stats, traffic = await self._generate(opened, output, emit, span, start)
        assert output.finish is not None, "a generation that returns has ended its turn"
        usage = pb.Usage(
            prompt_tokens=record.turn_start,
            completion_tokens=output.num_tokens,
            cached_tokens=max(0, min(stats.cached_tokens, record.turn_start)),
        )
        self._record(usage, stats, span)
        await writer.write(complete(index, output.finish, stop, usage, stats.message(*traffic)))

    async def _generate(
        self, opened: Opened, output: TurnOutput, emit: Any, span: Any, start: float
    ) -> tuple[Stats, tuple[int, int]]:
        """What was counted, and the bytes sent and received."""
        config, record = self._config, opened.record
        vocab_size = self._codec.vocab_size
        first = OpenSession(record.session_id, record.turn.params, record.turn.seed, record.turn_start)
        drafting = Drafting(
            self._drafters,
            record.turn,
            first,
            DraftLimits(config.draft_timeout, config.support, vocab_size),
        )
        verifying = Verifying(
            self._targets,
            record.turn,
            first,
            record.fingerprint,
            VerifyLimits(config.verify_timeout, config.failover_timeout, vocab_size),
        )
        generation = Generation(
            record,
            output,
            drafting,
            verifying,
            self._store,
            emit,
            self._telemetry,
            self._metrics,
            trace=traceparent(span),
            fixed_k=config.num_draft_tokens if record.turn.num_draft_tokens is None else record.turn.num_draft_tokens,
            max_k=self._max_k(),
            heartbeat=config.session_lease / HEARTBEATS_PER_LEASE,
        )
        generation.stats.started = start
        await generation.run()
        sent = drafting.bytes_sent + verifying.bytes_sent
        received = drafting.bytes_received + verifying.bytes_received
        return generation.stats, (sent, received)

    async def _release(self, session_id: str, epoch: int) -> None:
        """The record stays for the next turn or a resume; failing to say so only delays them by the lease."""
        try:
            await self._store.release(session_id, epoch)
        except SpecdecError as error:
            log.warning("session %s not released: %s", session_id, error)

    def _record(self, usage: pb.Usage, stats: Stats, span: Any) -> None:
        metrics = self._metrics
        metrics.prompt_tokens.add(usage.prompt_tokens)
        metrics.cached_tokens.add(usage.cached_tokens)
        if stats.emitted_tokens:
            metrics.time_to_first_token.record(stats.first_token - stats.started)
        if stats.emitted_tokens > 1:
            metrics.time_per_output_token.record((stats.last_token - stats.first_token) / (stats.emitted_tokens - 1))
        if span.is_recording():
            span.set_attributes({names.INPUT_TOKENS: usage.prompt_tokens, names.OUTPUT_TOKENS: usage.completion_tokens})

    def _limits(self) -> Limits:
        return Limits(self._max_context(), self._config.max_draft_tokens, self._served_drafters())

    def _max_context(self) -> int:
        """What every ready verifier holds, so that any of them can take a session over."""
        limits = [replica.info.max_context for replica in self._targets.ready()]
        if self._config.max_context is not None:
            limits.append(self._config.max_context)
        return min(limits, default=0)

    def _max_k(self) -> int:
        """What every ready verifier takes in one message; 0 where there are no drafters to ask."""
        if self._disabled_reason():
            return 0
        limits = [replica.info.max_nodes for replica in self._targets.ready()]
        return min([self._config.max_draft_tokens, *limits])

    def _served_drafters(self) -> tuple[str, ...]:
        """Those of lost replicas too: a request that names one goes on without it."""
        if self._disabled_reason():
            return ()
        return tuple(dict.fromkeys([*self._drafters.drafters_seen(), INDEPENDENT]))

    def _disabled_reason(self) -> str:
        if not self._config.draft_addresses:
            return "no draft_addresses"
        if self._config.max_draft_tokens == 0:
            return "max_draft_tokens is 0"
        return ""

    def _request_attributes(self, request: pb.GenerateRequest) -> Mapping[str, Any]:
        given = {
            names.OPERATION_NAME: "generate_content",
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: self._config.model,
        }
        optional = {
            "temperature": names.REQUEST_TEMPERATURE,
            "top_p": names.REQUEST_TOP_P,
            "top_k": names.REQUEST_TOP_K,
            "max_tokens": names.REQUEST_MAX_TOKENS,
        }
        set_fields = {field.name: value for field, value in request.ListFields()}
        return given | {label: set_fields[name] for name, label in optional.items() if name in set_fields}
