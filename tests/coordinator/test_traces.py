"""One request, one trace: a cycle span per cycle, its phases under it, and every message names the span it is of."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from protos import generation_pb2_grpc
from protos.generation_pb2 import Chunk
from specdec.core.errors import DeadlineExceeded, InvalidArgument
from specdec.edge import telemetry as names
from specdec.edge.channel import channel_options, open_channel
from specdec.edge.client import build_request
from tests.fakes.scripted import Request, Scripted, silent
from tests.fakes.stack import Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, letters_folder

PHASES = {names.SPAN_DRAFT, names.SPAN_VERIFY, names.SPAN_ACCEPT, names.SPAN_COMMIT}
FIELDS: dict[str, Any] = {"token_ids": [1], "max_tokens": 20, "seed": 3, "num_draft_tokens": 3}


@asynccontextmanager
async def traced(
    tmp_path: Path, **settings: Any
) -> AsyncIterator[tuple[Stack, InMemorySpanExporter, Scripted, Scripted]]:
    folder = letters_folder(tmp_path / "m", 5)
    exporter = InMemorySpanExporter()
    target, drafter = scripted_target(MARKOV_5, folder), scripted_drafter(MARKOV_5_DRAFT, folder)
    async with stack(folder, [target], [drafter], span_exporter=exporter, **settings) as s:
        yield s, exporter, target, drafter


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def named_by(request: Any) -> tuple[int, int]:
    """Trace and span that a message's traceparent names."""
    _, trace, span, _ = request.traceparent.split("-")
    return int(trace, 16), int(span, 16)


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {})[name]


def by_trace(exporter: InMemorySpanExporter) -> dict[int, list[ReadableSpan]]:
    traces: dict[int, list[ReadableSpan]] = defaultdict(list)
    for span in exporter.get_finished_spans():
        traces[ids(span)[0]].append(span)
    return traces


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def is_one_request(spans: Sequence[ReadableSpan], cycles: int) -> None:
    (root,) = named(spans, names.SPAN_GENERATE)
    assert root.kind is SpanKind.SERVER
    found = named(spans, names.SPAN_CYCLE)
    assert [attribute(span, names.CYCLE) for span in found] == list(range(1, cycles + 1))
    assert all(span.parent is not None and span.parent.span_id == ids(root)[1] for span in found)
    for cycle in found:
        below = [span for span in spans if span.parent is not None and span.parent.span_id == ids(cycle)[1]]
        assert {span.name for span in below} == PHASES
        assert len(below) == len(PHASES)
    assert len(spans) == 1 + cycles * (1 + len(PHASES))


def carries(messages: Sequence[Any], spans: Sequence[ReadableSpan], name: str) -> None:
    """Each message names the phase span of its own cycle in its own trace."""
    cycles = {ids(span)[1]: attribute(span, names.CYCLE) for span in named(spans, names.SPAN_CYCLE)}
    expected = {cycles[span.parent.span_id]: ids(span) for span in named(spans, name) if span.parent is not None}
    assert messages
    for message in messages:
        assert named_by(message) == expected[message.cycle]


@pytest.mark.scenario("B118", "B119")
async def test_interleaved_requests_keep_their_own_traces(tmp_path: Path) -> None:
    """B118, B119: twenty at once; every span is in its request's trace, under its own cycle."""
    async with traced(tmp_path) as (s, exporter, target, drafter):
        answers = await asyncio.gather(*(s.generate(**{**FIELDS, "seed": seed}) for seed in range(20)))
        await until(lambda: s.active == 0)
    traces = by_trace(exporter)
    assert len(traces) == 20
    roots = {attribute(named(spans, names.SPAN_GENERATE)[0], names.SESSION_ID): spans for spans in traces.values()}
    for answer in answers:
        session = answer.started.session_id
        spans = roots[session]
        is_one_request(spans, answer.stats.cycles)
        carries(target.sent(session), spans, names.SPAN_VERIFY)
        carries(drafter.sent(session), spans, names.SPAN_DRAFT)
        cycles = named(spans, names.SPAN_CYCLE)
        assert sum(attribute(span, names.NUM_EMITTED_TOKENS) for span in cycles) == 20
        assert sum(attribute(span, names.NUM_ACCEPTED_TOKENS) for span in cycles) == answer.stats.accepted_tokens


async def test_a_callers_trace_goes_on(tmp_path: Path) -> None:
    parent = f"00-{7:032x}-{9:016x}-01"
    async with traced(tmp_path) as (s, exporter, _, _), open_channel(s.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        async for _ in stub.Generate(build_request(**FIELDS), metadata=(("traceparent", parent),)):
            pass
        await until(lambda: s.active == 0)
    (root,) = named(exporter.get_finished_spans(), names.SPAN_GENERATE)
    assert ids(root)[0] == 7
    assert root.parent is not None
    assert root.parent.span_id == 9
    assert attribute(root, names.PROVIDER_NAME) == "specdec"
    assert attribute(root, names.REQUEST_MAX_TOKENS) == 20
    assert attribute(root, names.INPUT_TOKENS) == 1
    assert attribute(root, names.OUTPUT_TOKENS) == 20
    assert attribute(root, names.REQUEST_SEED) == "3"
    assert attribute(root, names.RESPONSE_FINISH_REASONS) == ("length",)
    assert root.status.status_code is not StatusCode.ERROR


def every_message_belongs_to_a_finished_span(exporter: InMemorySpanExporter, *replicas: Scripted) -> None:
    finished = {ids(span) for span in exporter.get_finished_spans()}
    for replica in replicas:
        assert {named_by(request) for _, request in replica.requests} <= finished


@pytest.mark.scenario("B120")
@pytest.mark.parametrize("when", ["before the first chunk", "after three chunks"])
async def test_the_spans_of_a_cancelled_stream_are_finished(tmp_path: Path, when: str) -> None:
    """B120: exactly one request span, marked cancelled, with the tokens that were delivered."""
    async with traced(tmp_path) as (s, exporter, target, drafter):
        if when == "before the first chunk":
            target.script = silent
        delivered = chunks = 0
        async with aclosing(s.client.generate(**{**FIELDS, "max_tokens": 4000})) as events:
            async for event in events:
                if isinstance(event, Chunk):
                    delivered += len(event.tokens)
                    chunks += 1
                if target.script is silent or chunks == 3:
                    break
            await until(lambda: bool(target.requests))
        await until(lambda: s.active == 0)
    (root,) = named(exporter.get_finished_spans(), names.SPAN_GENERATE)
    assert root.status.status_code is StatusCode.ERROR
    assert attribute(root, "error.type") in ("CANCELLED", "ExecuteBatchError")
    assert attribute(root, names.OUTPUT_TOKENS) >= delivered
    every_message_belongs_to_a_finished_span(exporter, target, drafter)


@pytest.mark.scenario("B120")
@pytest.mark.parametrize("then", ["leaves", "runs out of its own time"])
async def test_the_spans_of_a_stream_that_nobody_reads_are_finished(tmp_path: Path, then: str) -> None:
    """B120: the window is full, a write waits, and the client goes: one request span, cancelled, and no token counted
    that was not handed over."""
    narrow = [*channel_options(), ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 512)]
    request = build_request(**{**FIELDS, "max_tokens": 4000})
    async with (
        traced(tmp_path) as (s, exporter, target, drafter),
        grpc.aio.insecure_channel(s.address, options=narrow) as channel,
    ):
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(request, timeout=None if then == "leaves" else 0.5)
        await until(lambda: len(target.requests) > 0)
        await s.generate(**FIELDS)  # beside it, to its end: by then the window is full
        if then == "leaves":
            call.cancel()
        await until(lambda: s.active == 0)
    roots = named(exporter.get_finished_spans(), names.SPAN_GENERATE)
    assert len(roots) == 2
    (root,) = (span for span in roots if span.status.status_code is StatusCode.ERROR)
    assert attribute(root, names.RESPONSE_FINISH_REASONS) == ("cancelled",)
    cycles = named(by_trace(exporter)[ids(root)[0]], names.SPAN_CYCLE)
    emitted = [attribute(c, names.NUM_EMITTED_TOKENS) for c in cycles if c.status.status_code is not StatusCode.ERROR]
    assert attribute(root, names.OUTPUT_TOKENS) <= sum(emitted) < 4000
    every_message_belongs_to_a_finished_span(exporter, target, drafter)


@pytest.mark.scenario("B120")
async def test_the_spans_of_a_request_that_runs_out_of_time_are_finished(tmp_path: Path) -> None:
    """B120: DEADLINE on the request span; what it had begun is finished too."""
    async with traced(tmp_path, request_timeout=0.3) as (s, exporter, target, drafter):
        target.script = silent
        with pytest.raises(DeadlineExceeded):
            await s.generate(**FIELDS)
        await until(lambda: s.active == 0)
    (root,) = named(exporter.get_finished_spans(), names.SPAN_GENERATE)
    assert attribute(root, "error.type") == "DEADLINE"
    assert attribute(root, names.OUTPUT_TOKENS) == 0
    every_message_belongs_to_a_finished_span(exporter, target, drafter)


async def test_a_refused_request_says_why_on_its_span(tmp_path: Path) -> None:
    async with traced(tmp_path) as (s, exporter, _, _):
        with pytest.raises(InvalidArgument):
            await s.generate(token_ids=[99], max_tokens=4)
        await until(lambda: s.active == 0)
    (root,) = exporter.get_finished_spans()
    assert attribute(root, "error.type") == "INVALID_ARGUMENT"


@pytest.mark.scenario("B118")
async def test_a_retried_verification_stays_in_its_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B118: after a failover the new replica's messages name the same span."""
    monkeypatch.setattr("coordinator.replica.FIRST_PAUSE", 0.01)
    failed = False

    async def fail_once(request: Request, reply: Any) -> Any:
        nonlocal failed
        if request.cycle == 3 and not failed:
            failed = True
            raise RuntimeError("the verifier broke")
        return reply

    async with traced(tmp_path) as (s, exporter, target, _):
        target.script = fail_once
        answer = await s.generate(**FIELDS)
        await until(lambda: s.active == 0)
    spans = exporter.get_finished_spans()
    is_one_request(spans, answer.stats.cycles)
    third = [request for request in target.sent(answer.started.session_id) if request.cycle == 3]
    assert len(third) == 2
    carries(target.sent(answer.started.session_id), spans, names.SPAN_VERIFY)


async def test_without_an_exporter_messages_carry_no_trace(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    target = scripted_target(MARKOV_5, folder)
    async with stack(folder, [target]) as s:
        await s.generate(**FIELDS)
    assert {request.traceparent for _, request in target.requests} == {""}
