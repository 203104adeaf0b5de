import asyncio
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import use_span

from specdec.core.errors import NotFound
from specdec.edge.batcher import MicroBatcher
from specdec.edge.otel import FLUSH_BUDGET, OFF, Telemetry, traceparent
from tests.otlp_receiver import OtlpReceiver

ROOT = Path(__file__).parents[2]


@contextmanager
def recording() -> Iterator[tuple[Telemetry, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    with Telemetry.start("test", env={}, span_exporter=exporter) as telemetry:
        yield telemetry, exporter


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_without_an_endpoint_a_span_costs_nothing_and_has_no_traceparent() -> None:
    telemetry = Telemetry.start("x", env={})
    assert not telemetry.tracing
    one, other = telemetry.span("one", attributes={"a": 1}), telemetry.span("other", parent="junk")
    assert one is other
    with one as span:
        assert span is OFF
        span.set_attribute("a", 1)
        assert traceparent(span) == ""
    telemetry.record_span("s", "00-" + "1" * 32 + "-" + "2" * 16 + "-01", 1, 2)


@pytest.mark.parametrize("junk", ["", "junk", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_parent_that_is_none_begins_a_new_trace(junk: str) -> None:
    with recording() as (telemetry, exporter):
        with telemetry.span("a", parent=junk) as outer, use_span(outer), telemetry.span("b"):
            pass
        b, a = exporter.get_finished_spans()
    assert parent_id(a) is None
    assert parent_id(b) is None, "the surroundings are no parent"
    assert a.context.trace_id != b.context.trace_id


def test_a_traceparent_carries_the_trace_to_another_process() -> None:
    with recording() as (here, mine), recording() as (there, theirs):
        with here.span("specdec.verify") as span:
            carried = traceparent(span)
            there.record_span("target.forward", carried, 1_000, 2_000, {"specdec.batch_size": 3})
        there.record_span("target.forward", "", 1_000, 2_000)
        (local,), (remote,) = mine.get_finished_spans(), theirs.get_finished_spans()
    assert remote.context.trace_id == local.context.trace_id
    assert parent_id(remote) == local.context.span_id
    assert (remote.start_time, remote.end_time) == (1_000, 2_000)
    assert dict(remote.attributes or {}) == {"specdec.batch_size": 3}


def test_an_unsampled_parent_is_respected() -> None:
    with recording() as (telemetry, exporter):
        telemetry.record_span("s", "00-" + "1" * 32 + "-" + "2" * 16 + "-00", 1, 2)
        assert exporter.get_finished_spans() == ()


@pytest.mark.scenario("B120")
async def test_a_span_ends_with_its_block_whatever_ends_the_block() -> None:
    """Normal end, typed error, bug and cancellation: one finished span each, errors with their type."""
    with recording() as (telemetry, exporter):
        with telemetry.span("fine"):
            pass
        with pytest.raises(NotFound), telemetry.span("typed"):
            raise NotFound("no such session")
        with pytest.raises(ZeroDivisionError), telemetry.span("bug"):
            raise ZeroDivisionError

        async def hang() -> None:
            with telemetry.span("cancelled"):
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        spans = {span.name: span for span in exporter.get_finished_spans()}
    types = {name: (span.attributes or {}).get("error.type") for name, span in spans.items()}
    assert types == {
        "fine": None,
        "typed": "SESSION_NOT_FOUND",
        "bug": "ZeroDivisionError",
        "cancelled": "CANCELLED",
    }
    assert [spans[name].status.is_ok for name in types] == [True, False, False, False]


@pytest.mark.scenario("B118")
@pytest.mark.scenario("B119")
async def test_interleaved_requests_keep_their_own_traces_through_tasks_batches_and_threads() -> None:
    """Twenty requests draft in background tasks and verify in one shared batcher on its thread: every span hangs
    under its own request's."""
    rng = random.Random(3)
    with recording() as (telemetry, exporter):

        def step(jobs: list[tuple[str, int]]) -> list[tuple[tuple[str, int], int]]:
            began = time.time_ns()
            for carried, session in jobs:
                attributes = {"session": session, "specdec.batch_size": len(jobs)}
                telemetry.record_span("target.forward", carried, began, time.time_ns(), attributes)
            return [(job, job[1]) for job in jobs]

        async def request(session: int, batcher: MicroBatcher[tuple[str, int], int]) -> None:
            async def draft(carried: str) -> None:
                with telemetry.span("specdec.draft", parent=carried, attributes={"session": session}):
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(0)

            with telemetry.span("generate", attributes={"session": session}) as generate:
                for _ in range(3):
                    async with asyncio.TaskGroup() as group:
                        group.create_task(draft(traceparent(generate)))
                        with telemetry.span(
                            "specdec.verify", parent=generate, attributes={"session": session}
                        ) as verify:
                            assert await batcher.submit((traceparent(verify), session)) == session

        async with MicroBatcher(step, queue_limit=100) as batcher, asyncio.TaskGroup() as group:
            for session in range(20):
                group.create_task(request(session, batcher))
        spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    assert len(spans) == 20 * (1 + 3 * 3)
    assert len({span.context.trace_id for span in spans}) == 20
    for span in spans:
        parent = by_id.get(parent_id(span) or 0)
        expected = {"specdec.draft": "generate", "specdec.verify": "generate", "target.forward": "specdec.verify"}
        assert (parent.name if parent else None) == expected.get(span.name)
        if parent is not None:
            assert (span.attributes or {})["session"] == (parent.attributes or {})["session"]
    sizes = [int(str((s.attributes or {})["specdec.batch_size"])) for s in spans if s.name == "target.forward"]
    assert max(sizes) > 1, "the batch was shared"


@pytest.fixture
def black_hole() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def leave(endpoint: str, budget: float) -> float:
    """Seconds from SIGTERM to the process' end."""
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    command = (sys.executable, "-m", "tests.edge.flush_process", str(budget))
    child = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    began = time.monotonic()
    child.send_signal(signal.SIGTERM)
    await child.communicate()
    assert child.returncode == 0
    return time.monotonic() - began


@pytest.mark.scenario("B121")
async def test_with_a_healthy_collector_no_span_is_lost_at_exit() -> None:
    """SIGTERM with 100 spans buffered: all arrive, and so do the metrics."""
    with OtlpReceiver() as receiver:
        await leave(receiver.endpoint, FLUSH_BUDGET)
        assert sorted(span.attributes["n"] for span in receiver.spans) == list(range(100))
        assert {span.service for span in receiver.spans} == {"flusher"}
        assert "specdec_num_drafts_total" in receiver.metrics


@pytest.mark.scenario("B121")
def test_an_unreachable_collector_holds_up_nobody_who_serves(black_hole: str) -> None:
    """B121: more spans than the exporter buffers, while it waits for a collector that never answers. One export alone
    would take its timeout of 10 s; the spans beyond the buffer are dropped."""
    with Telemetry.start("x", env={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": black_hole}) as telemetry:
        telemetry.flush_budget = 0.1
        began = time.monotonic()
        for _ in range(5000):
            with telemetry.span("work"):
                pass
        assert time.monotonic() - began < 5


@pytest.mark.scenario("B121")
@pytest.mark.parametrize("kind", ["refused", "black hole"])
async def test_an_unreachable_collector_costs_no_more_than_the_flush_budget(kind: str, black_hole: str) -> None:
    """The exporter alone would hold the process for its own timeout of 10 s, the processor for 30."""
    endpoint = black_hole if kind == "black hole" else "http://127.0.0.1:9"
    assert await leave(endpoint, 0.3) < 5
    assert FLUSH_BUDGET <= 5
