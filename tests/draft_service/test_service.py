"""The service over real gRPC: the context rule, drafts and refusals in-band, sessions that end in any phase."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from draft_service.config import DraftConfig
from draft_service.drafters import DraftJob, DraftModel
from draft_service.drafters.ngram import NgramDrafter
from draft_service.session import DraftSession
from protos import common_pb2, draft_pb2
from specdec.core.draft import Draft, DraftKind
from specdec.core.errors import SpecdecError
from specdec.core.laws import check_draft, check_draws
from specdec.core.tree import DraftTree
from specdec.edge.info_codec import decode_info
from specdec.edge.messages import StaleContext
from specdec.edge.telemetry import Telemetry
from tests.draft_service.conftest import MAX_CONTEXT, VOCAB, NewDrafter
from tests.draft_service.jobs import draft_one, job, random_ids, tokens
from tests.draft_service.wire import SAMPLED, Served, drafted, refused, serving


@pytest.mark.scenario("B71")
@pytest.mark.scenario("B124")
async def test_info_tells_what_is_served_and_how(new_drafter: NewDrafter) -> None:
    """Limits and settings in force can be read from the running drafter."""
    config = DraftConfig(
        model="unused", drafters=("lm", "ngram"), max_draft_tokens=7, max_support=5, token_budget=99, queue_limit=3
    )
    drafter = new_drafter(kv_tokens=96)
    async with serving({"lm": drafter, "ngram": NgramDrafter(DraftModel())}, config=config) as served:
        info = decode_info(await served.stub.Info(common_pb2.InfoRequest()))
    assert (info.role, info.replica_id, info.drafters) == ("draft", "drafter-0", ("lm", "ngram"))
    assert (info.max_context, info.max_nodes, info.token_budget) == (96, 7, 99)
    assert (info.vocab_size, info.dtype) == (VOCAB, "float32")
    assert info.model_fingerprint == drafter.model.fingerprint != ""
    assert (info.load.kv_free, info.load.kv_total) == (96, 96)
    assert info.config["max_support"] == "5" and info.config["queue_limit"] == "3"
    assert info.config.keys() == set(DraftConfig.__dataclass_fields__)


async def test_an_ngram_replica_without_a_model_fits_any_target() -> None:
    async with serving({"ngram": NgramDrafter(DraftModel())}) as served:
        info = decode_info(await served.stub.Info(common_pb2.InfoRequest()))
        assert (info.vocab_size, info.tokenizer_hash, info.model_fingerprint, info.max_context) == (0, "", "", 0)
        client = served.client()
        reply = await client.ask(0, [7, 4_000_000_000, 7, 4_000_000_000], 2, open=client.opening("ngram"))
        assert tokens(drafted(reply)) == [7, 4_000_000_000]


async def test_before_the_drafters_are_loaded_every_call_is_unavailable() -> None:
    async with serving({}, config=DraftConfig()) as served:
        for call in (served.stub.Info(common_pb2.InfoRequest()), served.stub.Draft().read()):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_replies_echo_the_cycle_and_tell_time_and_load(replica: Served) -> None:
    client = replica.client()
    context = random_ids(1, 11)
    first = await client.ask(0, context, open=client.opening())
    second = await client.ask(11, tokens(drafted(first)))
    assert (first.cycle, second.cycle) == (1, 2)
    assert first.timing.batch_size == 1 and first.timing.compute_us > 0
    assert (first.timing.computed_tokens, second.timing.computed_tokens) == (11, 1)
    assert 0 < first.load.kv_free < first.load.kv_total == 4096 and not first.load.draining


@pytest.mark.parametrize("k", [1, 3, 16])
async def test_drafts_over_the_wire_are_the_drafters_own(replica: Served, new_drafter: NewDrafter, k: int) -> None:
    client, context = replica.client(), random_ids(2, 9)
    reply = await client.ask(0, context, k, open=client.opening(params=SAMPLED, seed=5, turn_start=4))
    alone = draft_one(new_drafter(), job(context, k, SAMPLED, seed=5, turn_start=4))
    assert tokens(drafted(reply)) == tokens(alone)
    assert drafted(reply).coupled


@pytest.mark.scenario("B09")
async def test_the_coordinators_redraw_agrees_with_every_reply(replica: Served) -> None:
    """Law and tokens that do not belong together are a wire error; here whole conversations pass."""
    client, rng = replica.client(), np.random.default_rng(4)
    context, offset = random_ids(3, 6), 0
    for turn in range(3):
        opening = client.opening(
            params=replace(SAMPLED, temperature=0.5 + turn), seed=100 + turn, turn_start=len(context)
        )
        for cycle in range(8):
            reply = await client.sampled(offset, context[offset:], 5, open=None if cycle else opening)
            draft = drafted(reply)
            assert draft.kind is DraftKind.SAMPLED and len(draft.laws) == 5
            check_draft(draft, VOCAB)
            check_draws(draft, 100 + turn, len(context))
            offset = len(context)
            context = [*context, *tokens(draft)[: rng.integers(6)], int(rng.integers(VOCAB))]


@pytest.mark.scenario("B39")
async def test_no_reply_has_more_tokens_than_asked_for_or_than_the_replica_gives(new_drafter: NewDrafter) -> None:
    """The smaller of the two limits holds, for every drafter."""
    config = DraftConfig(model="unused", drafters=("lm", "ngram"), max_draft_tokens=3, max_support=4)
    async with serving({"lm": new_drafter(), "ngram": NgramDrafter(DraftModel())}, config=config) as served:
        for name in ("lm", "ngram"):
            client = served.client(name)
            opening = client.opening(name, SAMPLED)
            for k in (1, 2, 3, 9):
                reply = await client.sampled(0, [1, 2, 3, 4, 1, 2], k, open=opening)
                assert drafted(reply).tree.num_draft_tokens == min(k, 3)
                assert all(len(law.ids) <= 4 for law in drafted(reply).laws)


async def test_a_gap_is_answered_in_band_and_the_stream_lives_on(replica: Served) -> None:
    client, context = replica.client(), random_ids(1, 10)
    stale = await client.ask(4, context[4:], open=client.opening())
    assert stale.result == StaleContext(0) and stale.cycle == 1
    assert drafted(await client.ask(0, context)).tree.num_draft_tokens == 4
    assert (await client.ask(12, [1])).result == StaleContext(10)
    assert drafted(await client.ask(10, [1])).tree.num_draft_tokens == 4


async def test_refusals_are_in_band_and_name_the_field(replica: Served) -> None:
    client, context = replica.client(), random_ids(1, 10)
    assert refused(await client.ask(0, context)).field == "open"
    unknown = refused(await client.ask(0, context, open=client.opening("medusa")))
    assert unknown.reason == "UNKNOWN_DRAFTER" and "medusa" in unknown.message and "lm, ngram" in unknown.message
    too_high = refused(await client.ask(0, [VOCAB], open=client.opening()))
    assert (too_high.reason, too_high.field) == ("INVALID_ARGUMENT", "token_ids")
    assert refused(await client.ask(0, [], open=client.opening())).field == "token_ids"
    nothing_left = replace(SAMPLED, logit_bias=tuple((v, -np.inf) for v in range(VOCAB)))
    empty = refused(await client.ask(0, context, open=client.opening(params=nothing_left)))
    assert empty.reason == "EMPTY_LAW"
    other = replace(client.opening(), session_id="other")
    assert refused(await client.ask(0, context, open=other)).field == "open.session_id"
    assert drafted(await client.ask(0, context, open=client.opening())).tree.num_draft_tokens == 4


async def test_another_protocol_version_is_refused(replica: Served) -> None:
    client = replica.client()
    opening = replace(client.opening(), protocol_version=99)
    assert refused(await client.ask(0, [1, 2], open=opening)).field == "protocol_version"


async def test_a_malformed_message_costs_its_own_reply_only(replica: Served) -> None:
    client = replica.client()
    await client.ask(0, random_ids(1, 6), open=client.opening())
    await client.call.write(
        draft_pb2.DraftRequest(cycle=77, token_ids=b"abc", num_draft_tokens=2, mode=draft_pb2.DRAFT_MODE_CHOSEN)
    )
    reply = await client.call.read()
    assert reply.cycle == 77 and reply.refusal.field == "token_ids"
    assert drafted(await client.ask(6, [5])).tree.num_draft_tokens == 4


async def test_a_session_that_names_no_drafter_gets_the_first(replica: Served) -> None:
    client = replica.client()
    assert drafted(await client.ask(0, [1, 2, 3], open=client.opening(""))).drafter == "lm"


async def test_a_new_turn_may_ask_for_another_drafter_and_the_old_one_forgets(replica: Served) -> None:
    client, lm = replica.client(), replica.lanes["lm"].drafter
    context = [1, 2, 3, 4, 1, 2]
    assert drafted(await client.ask(0, context, open=client.opening("lm"))).drafter == "lm"
    assert lm.kv_free < lm.kv_total
    reply = await client.ask(6, [3, 4], open=client.opening("ngram"))
    assert drafted(reply).drafter == "ngram" and tokens(drafted(reply)) == [1, 2, 3, 4]
    assert lm.kv_free == lm.kv_total


async def test_a_spent_budget_is_an_empty_draft_in_time(replica: Served) -> None:
    """One microsecond is over before the first forward; without a budget the same context is drafted for, in full."""
    client, context = replica.client(), random_ids(1, 100)
    reply = await client.ask(0, context, budget_us=1, open=client.opening())
    assert drafted(reply).tree.num_draft_tokens == 0
    assert drafted(await client.ask(100, [1])).tree.num_draft_tokens == 4


@pytest.mark.scenario("B69")
async def test_near_the_window_drafts_shrink_to_nothing(replica: Served) -> None:
    """...and no error is answered, also beyond it."""
    client, context = replica.client(), random_ids(1, MAX_CONTEXT + 5)
    lengths = [
        drafted(await client.ask(0, context[:n], 5, open=client.opening())).tree.num_draft_tokens
        for n in (MAX_CONTEXT - 7, MAX_CONTEXT - 3, MAX_CONTEXT - 1, MAX_CONTEXT, MAX_CONTEXT + 5)
    ]
    assert lengths == [5, 3, 1, 0, 0]


async def test_while_draining_replies_say_so_and_streams_are_served_on(replica: Served) -> None:
    client = replica.client()
    await client.ask(0, [1, 2, 3], open=client.opening())
    await replica.service.drain()
    reply = await client.ask(3, [4])
    assert reply.load.draining and drafted(reply).tree.num_draft_tokens == 4


class Broken:
    """A bug in a drafter."""

    model = DraftModel()
    kv_free = kv_total = 0

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        raise RuntimeError("a bug")

    def close(self, session: DraftSession) -> None:
        """Nothing is held."""


async def test_a_bug_in_one_drafter_ends_the_stream_and_not_the_replica(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({"broken": Broken(), "ngram": NgramDrafter(DraftModel())}) as served:
        client = served.client()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.ask(0, [1], open=client.opening("broken"))
            await client.call.read()
        assert error.value.code() is grpc.StatusCode.INTERNAL and "a bug" not in str(error.value.details())
        other = served.client("other")
        assert tokens(drafted(await other.ask(0, [1, 2, 3, 1, 2], 1, open=other.opening("ngram")))) == [3]
    assert "a bug" in caplog.text


@pytest.mark.scenario("B119")
async def test_each_span_is_a_child_of_its_own_messages_context(new_drafter: NewDrafter) -> None:
    """Messages of many traces share a batch; no span may hang under a neighbour's."""
    exporter = InMemorySpanExporter()
    telemetry = Telemetry.start("test", env={}, span_exporter=exporter)
    async with serving({"lm": new_drafter()}, telemetry=telemetry) as served:
        clients = [served.client(f"s{i}") for i in range(5)]
        parents = [f"00-{i + 1:032x}-{i + 100:016x}-01" for i in range(5)]
        await asyncio.gather(
            *(
                client.ask(0, random_ids(1, 5 + i), 2 + i, traceparent=parents[i], open=client.opening())
                for i, client in enumerate(clients)
            )
        )
        await clients[0].ask(5, [1])
    telemetry.shutdown()
    spans = exporter.get_finished_spans()
    assert len(spans) == 5, "a message without a trace makes no span"
    for span in spans:
        attributes = span.attributes or {}
        i = int(str(attributes["specdec.session.id"])[1:])
        assert span.name == "draft.propose" and span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == (i + 1, i + 100)
        assert (attributes["specdec.num_draft_tokens"], attributes["specdec.context_length"]) == (2 + i, 5 + i)
        assert attributes["specdec.drafter"] == "lm" and attributes["specdec.replica.id"] == "drafter-0"


async def test_metrics_count_what_was_done(loaded: object, new_drafter: NewDrafter) -> None:
    telemetry = Telemetry.start("test", env={})
    async with serving({"lm": new_drafter()}, telemetry=telemetry) as served:
        client = served.client()
        await client.ask(0, [1, 2, 3], open=client.opening())
        await client.ask(9, [1])
        await client.ask(0, [VOCAB])
        scraped = telemetry.scrape()
    telemetry.shutdown()
    for line in ('refusals_total{reason="INVALID_ARGUMENT"', "stale_contexts_total", "sessions", "kv_total_tokens"):
        assert f"specdec_{line}" in scraped.replace('service_name="test",', "").replace(',service_name="test"', "")
    assert telemetry.failures.count == 0


async def test_a_whole_tree_of_a_drafter_travels(replica: Served) -> None:
    """The service asks nothing of a draft's shape: drafters to come answer with trees."""
    tree = DraftTree(np.array([1, 2, 3], dtype=np.uint32), np.array([0, 0, 1]))

    class Trees(Broken):
        def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
            return [Draft(tree, drafter="trees", score=1.5) for _ in jobs]

    async with serving({"trees": Trees()}) as served:
        client = served.client()
        draft = drafted(await client.ask(0, [1], open=client.opening("trees")))
    assert draft.tree.parents.tolist() == [0, 0, 1] and draft.score == 1.5
