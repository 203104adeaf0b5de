"""The service over real gRPC: verifications and refusals in-band, sessions that end in any phase, honest health."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from protos import common_pb2, target_pb2
from specdec.core.features import row_bytes
from specdec.core.sampling import SamplingParams
from specdec.core.step_time import StepTimeTable
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.info_codec import decode_info
from specdec.edge.messages import Refusal, StaleContext, VerifyReply
from specdec.edge.telemetry import Telemetry
from specdec.lm.loading import LoadedModel
from target_service.config import TargetConfig
from target_service.schedule import Schedule
from target_service.step_time import StepTimes
from tests.target_service.conftest import MAX_CONTEXT, VOCAB, MakeEngine
from tests.target_service.driver import GREEDY, generate, guesses, plain
from tests.target_service.wire import converse, health, prompt, serving, until, until_health, verified

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def refused(reply: VerifyReply) -> Refusal:
    assert isinstance(reply.result, Refusal), reply.result
    return reply.result


async def test_info_tells_what_is_served_and_how(models: dict[str, LoadedModel], make_engine: MakeEngine) -> None:
    config = TargetConfig(model="tiny", token_budget=64, max_nodes=16, kv_tokens=2000)
    async with serving(models["llama"], make_engine(), config=config) as served:
        info = decode_info(await served.stub.Info(common_pb2.InfoRequest()))
    assert (info.role, info.replica_id, info.dtype) == ("target", "verifier-0", "float32")
    assert (info.vocab_size, info.max_context, info.max_nodes, info.token_budget) == (VOCAB, MAX_CONTEXT, 16, 64)
    assert info.model_fingerprint == models["llama"].fingerprint
    assert info.base_fingerprint == models["llama"].base_fingerprint
    assert (info.num_layers, info.hidden_size) == (models["llama"].num_layers, models["llama"].hidden_size)
    assert info.load.kv_free == info.load.kv_total == 2016, "whole blocks"
    assert info.config.keys() == set(TargetConfig.__dataclass_fields__)
    assert info.step_times is None


async def test_hidden_states_come_with_the_verification_where_they_were_asked_for(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    async with serving(models["llama"], make_engine()) as served:
        plain, reader = served.client("plain"), served.client("reader")
        reader.feature_bytes = row_bytes(2, models["llama"].hidden_size)
        opening = replace(reader.opening(), feature_layers=(0, 2))
        tree = guesses([*prompt(9), *generate(make_engine(), prompt(9), 3)], 2, 1, VOCAB)(prompt(9))
        assert (await plain.ask(0, prompt(9), tree, open=plain.opening())).features is None
        first = await reader.ask(0, prompt(9), tree, open=opening)
        assert first.features is not None
        assert (first.features.rows.offset, first.features.rows.rows, first.features.context_rows) == (0, 11, 8)
        unknown = await reader.ask(0, prompt(9), open=replace(opening, feature_layers=(99,)))
        assert refused(unknown).field == "open.feature_layers"


async def test_what_was_tuned_is_told_as_it_is_now(models: dict[str, LoadedModel], make_engine: MakeEngine) -> None:
    """In Info, its configuration and the metrics: budget, target, and step times that the forwards correct."""
    table = StepTimeTable.of((1, 8, 64), (0, 100), [[20.0, 21.0], [22.0, 23.0], [80.0, 90.0]])
    engine = make_engine(schedule=Schedule(64, 17, StepTimes(table)), clock=itertools.count(step=40.0).__next__)
    telemetry = Telemetry.start("test", env={})
    async with serving(models["llama"], engine, config=TargetConfig(model="tiny"), telemetry=telemetry) as served:
        info = [decode_info(await served.stub.Info(common_pb2.InfoRequest()))]
        client = served.client()
        for i in range(20):
            verified(await client.ask(i, prompt(1), open=client.opening()))
        info.append(decode_info(await served.stub.Info(common_pb2.InfoRequest())))
        assert re.search(r"specdec_token_budget{.*} 64", telemetry.scrape())
    assert info[0].step_times == table
    assert (info[0].config["token_budget"], info[0].config["step_target"]) == ("64", "60.0")
    assert info[1].step_times is not None
    assert 30.0 < info[1].step_times.estimate(1, 0) < 41.0
    telemetry.shutdown()


async def test_before_the_model_is_loaded_every_call_is_unavailable_and_health_says_so(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    async with serving(models["llama"], make_engine(), ready=False) as served:
        assert await health(served.port) == NOT_SERVING
        for call in (served.stub.Info(common_pb2.InfoRequest()), served.stub.Verify().read()):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_many_sessions_over_the_wire_each_get_what_they_would_get_alone(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    alone = [generate(make_engine(), prompt(4 + i, i), 12, params=SAMPLED, seed=i) for i in range(8)]
    async with serving(models["llama"], make_engine(kv_tokens=4000)) as served:
        outputs = await asyncio.gather(
            *(
                converse(
                    served.client(f"s{i}"),
                    prompt(4 + i, i),
                    12,
                    guesses(prompt(4 + i, i) + alone[i], i % 4, 1, VOCAB),
                    params=SAMPLED,
                    seed=i,
                )
                for i in range(8)
            )
        )
    assert outputs == alone


async def test_replies_echo_the_cycle_and_tell_time_and_load(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    async with serving(models["llama"], make_engine()) as served:
        client = served.client()
        first = await client.ask(0, prompt(11), open=client.opening())
        second = await client.ask(11, [int(verified(first).drawn[0])], DraftTree.chain([1, 2]))
    assert (first.cycle, second.cycle) == (1, 2)
    assert first.timing.batch_size == 1 and first.timing.compute_us > 0
    assert (first.timing.computed_tokens, second.timing.computed_tokens) == (11, 1)
    assert 0 < second.load.kv_free < second.load.kv_total == 2016 and not second.load.draining


async def test_form_pq_travels_whole(models: dict[str, LoadedModel], make_engine: MakeEngine) -> None:
    """The codec checks that p on the support and the tail are a law."""
    async with serving(models["llama"], make_engine()) as served:
        client = served.client()
        tree = DraftTree.chain([5, 6])
        supports = tuple(np.array(s, dtype=np.uint32) for s in ([5, 9], [6, 1, 2]))
        reply = await client.ask(
            0, prompt(7), tree, open=client.opening(SAMPLED), form=VerifyForm.PQ, supports=supports
        )
    result = verified(reply)
    assert [law.ids.tolist() for law in result.laws] == [[5, 9], [6, 1, 2]]
    assert all(float(law.p.sum()) + law.tail == pytest.approx(1.0, abs=1e-6) for law in result.laws)


async def test_a_gap_is_answered_in_band_and_the_stream_lives_on(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    async with serving(models["llama"], make_engine()) as served:
        client = served.client()
        stale = await client.ask(4, prompt(3), open=client.opening())
        assert stale.result == StaleContext(0) and stale.cycle == 1
        verified(await client.ask(0, prompt(10)))
        assert (await client.ask(12, [1])).result == StaleContext(10)
        verified(await client.ask(10, [1]))


async def test_refusals_are_in_band_and_name_the_field(models: dict[str, LoadedModel], make_engine: MakeEngine) -> None:
    async with serving(models["llama"], make_engine()) as served:
        client = served.client()
        assert refused(await client.ask(0, prompt(5))).field == "open"
        assert refused(await client.ask(0, [VOCAB], open=client.opening())).field == "token_ids"
        assert refused(await client.ask(0, [], open=client.opening())).field == "token_ids"
        nothing_left = replace(SAMPLED, logit_bias=tuple((v, -np.inf) for v in range(VOCAB)))
        assert refused(await client.ask(0, prompt(5), open=client.opening(nothing_left))).reason == "EMPTY_LAW"
        other = replace(client.opening(), session_id="other")
        assert refused(await client.ask(0, prompt(5), open=other)).field == "open.session_id"
        await client.call.write(target_pb2.VerifyRequest(cycle=77, token_ids=b"abc", form="VERIFY_FORM_Y"))
        malformed = await client.call.read()
        assert (malformed.cycle, malformed.refusal.field) == (77, "token_ids")
        verified(await client.ask(0, prompt(5), open=client.opening()))


async def test_a_full_replica_refuses_sessions_as_overloaded(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    async with serving(models["llama"], make_engine(max_sessions=1)) as served:
        first, second = served.client("a"), served.client("b")
        verified(await first.ask(0, prompt(5), open=first.opening()))
        assert refused(await second.ask(0, prompt(5), open=second.opening())).reason == "OVERLOADED"
        first.call.cancel()
        await until(lambda: served.engine.num_sessions == 0)
        verified(await second.ask(0, prompt(5), open=second.opening()))


class Gate:
    """Stops the compute thread before each forward while it is shut."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.forwards = 0
        compute = engine._runner.compute

        def gated(segments: Any, layers: Any = ()) -> Any:
            self.forwards += 1
            assert self.open.wait(20), "the test opens the gate"
            return compute(segments, layers)

        monkeypatch.setattr(engine._runner, "compute", gated)


@pytest.mark.scenario("B83", "B86", "B90")
@pytest.mark.parametrize("phase", ["before the first message", "idle", "queued", "computing", "prefill", "half closed"])
async def test_a_stream_that_ends_frees_its_session_in_whatever_phase(
    models: dict[str, LoadedModel], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Streams, sessions, queue and room are as before, at once; others are served on."""
    engine = make_engine(token_budget=20)
    gate = Gate(engine, monkeypatch)
    async with serving(models["llama"], engine) as served:
        tasks = len(asyncio.all_tasks())
        other, leaving = served.client("other"), served.client("leaving")
        verified(await other.ask(0, prompt(6), open=other.opening()))
        if phase in ("idle", "half closed"):
            await leaving.ask(0, prompt(9), open=leaving.opening())
        elif phase != "before the first message":
            gate.open.clear()
            seen = gate.forwards
            if phase == "queued":
                await other.send(other.request(6, [1]))
                await until(lambda: gate.forwards > seen)
            n = 100 if phase == "prefill" else 5
            await leaving.send(leaving.request(0, prompt(n), open=leaving.opening()))
            await until(lambda: served.service.load().queued == 1 or gate.forwards > seen)
        if phase == "half closed":
            await leaving.call.done_writing()
            assert await leaving.call.read() is grpc.aio.EOF
        else:
            leaving.call.cancel()
        gate.open.set()
        await until(lambda: engine.num_sessions == 1 and served.server.active_calls == 1)
        other.call.cancel()
        await until(lambda: engine.num_sessions == 0 and served.server.active_calls == 0)
        assert engine.kv_free == engine.kv_total
        probe = served.client("probe")
        verified(await probe.ask(0, prompt(4), open=probe.opening()))
        await probe.call.done_writing()
        assert await probe.call.read() is grpc.aio.EOF
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


@pytest.mark.scenario("B136")
async def test_health_tells_of_a_model_that_always_raises_and_of_its_recovery(
    models: dict[str, LoadedModel], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process lives, but traffic must go elsewhere; a tiny forward tells when it may come back."""
    engine = make_engine()
    compute = engine._runner.compute
    broken = True

    def flaky(segments: Any, layers: Any = ()) -> Any:
        if broken:
            raise RuntimeError("the device fell off")
        return compute(segments, layers)

    monkeypatch.setattr(engine._runner, "compute", flaky)
    async with serving(models["llama"], engine) as served:
        await until_health(served.port, SERVING)
        client = served.client()
        for _ in range(3):
            reply = await client.ask(0, prompt(5), open=client.opening())
            assert refused(reply).reason == "FORWARD_FAILED"
        await until_health(served.port, NOT_SERVING)
        broken = False
        await until_health(served.port, SERVING)
        verified(await client.ask(0, prompt(5), open=client.opening()))


@pytest.mark.scenario("B136")
async def test_health_tells_of_a_forward_that_hangs(
    models: dict[str, LoadedModel], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    gate = Gate(engine, monkeypatch)
    async with serving(models["llama"], engine, stuck_after=0.3) as served:
        await until_health(served.port, SERVING)
        gate.open.clear()
        client = served.client()
        await client.send(client.request(0, prompt(5), open=client.opening()))
        await until_health(served.port, NOT_SERVING)
        gate.open.set()
        await until_health(served.port, SERVING)


async def test_a_draining_replica_says_so_in_every_reply_and_in_health(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    async with serving(models["llama"], make_engine()) as served:
        client = served.client()
        assert not (await client.ask(0, prompt(5), open=client.opening())).load.draining
        await served.service.drain()
        reply = await client.ask(5, [1])
        assert reply.load.draining and isinstance(reply.result, Verification)
        await until_health(served.port, NOT_SERVING)


async def test_each_forward_is_a_span_of_the_trace_that_asked(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    spans = InMemorySpanExporter()
    telemetry = Telemetry.start("test", env={}, span_exporter=spans)
    parents = [f"00-{i + 1:032x}-{i + 1:016x}-01" for i in range(3)]
    async with serving(models["llama"], make_engine(), telemetry=telemetry) as served:
        clients = [served.client(f"s{i}") for i in range(3)]
        await asyncio.gather(
            *(
                c.ask(0, prompt(5, i), DraftTree.chain([1, 2]), open=c.opening(), traceparent=parents[i])
                for i, c in enumerate(clients)
            )
        )
        await clients[0].ask(5, [1])  # not traced
    telemetry.shutdown()
    finished: Any = spans.get_finished_spans()
    assert sorted(s.parent.span_id for s in finished) == [1, 2, 3]
    for span in finished:
        assert span.name == "target.forward"
        assert span.context.trace_id == span.parent.span_id
        assert span.attributes["specdec.session.id"] == f"s{span.parent.span_id - 1}"
        assert span.attributes["specdec.num_draft_tokens"] == 2
        assert span.attributes["specdec.context_length"] == 5


async def test_plain_greedy_decoding_over_the_wire_is_the_engines(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    expected = generate(make_engine(), prompt(6), 10)
    async with serving(models["llama"], make_engine()) as served:
        assert await converse(served.client(), prompt(6), 10, plain, params=GREEDY) == expected
