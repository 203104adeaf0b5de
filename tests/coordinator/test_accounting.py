"""Counted once, in vLLM's meanings, and the same in the reply's statistics and on a live scrape."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protos.generation_pb2 import Started
from specdec.core.errors import DeadlineExceeded, InvalidArgument, NotFound, ResourceExhausted
from tests.fakes.scripted import Scripted, honest, silent
from tests.fakes.stack import Answer, Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import FIRST_LETTER, MARKOV_5, MARKOV_5_DRAFT, counter, letters_folder

SIZE = 80
COUNTER = counter(SIZE)
Propose = Callable[[Sequence[int], int], list[int]]


def oracle(context: Sequence[int], k: int) -> list[int]:
    return [(context[-1] + 1 + i) % SIZE for i in range(k)]


def half(context: Sequence[int], k: int) -> list[int]:
    """Right for two tokens, then wrong."""
    return [*oracle(context, k)[:2], *([0] * (k - 2))][:k]


def liar(context: Sequence[int], k: int) -> list[int]:
    return [(i + 1) % SIZE for i in oracle(context, k)]


@asynccontextmanager
async def counting(
    tmp_path: Path, propose: Any = oracle, verifier: Any = honest, proposer: Any = honest, **settings: Any
) -> AsyncIterator[tuple[Stack, Scripted]]:
    folder = letters_folder(tmp_path / "m", SIZE)
    drafter = scripted_drafter(COUNTER, folder, propose=propose, script=proposer)
    async with stack(folder, [scripted_target(COUNTER, folder, script=verifier)], [drafter], **settings) as s:
        yield s, drafter


TOTALS = {
    "drafts": "specdec_num_drafts_total",
    "draft_tokens": "specdec_num_draft_tokens_total",
    "accepted_tokens": "specdec_num_accepted_tokens_total",
    "cycles": "specdec_cycles_total",
    "cut_tokens": "specdec_cut_tokens_total",
}


def scrape_says_the_same(s: Stack, answers: Sequence[Answer]) -> None:
    for field, name in TOTALS.items():
        assert s.metric(name) == sum(getattr(answer.stats, field) for answer in answers), field
    delivered = sum(len(answer.ids) for answer in answers)
    assert s.metric("specdec_num_emitted_tokens_total") == delivered
    accepted, cycles, cut = (s.metric(TOTALS[n]) for n in ("accepted_tokens", "cycles", "cut_tokens"))
    assert delivered == accepted + cycles - cut
    for position in range(8):
        there = [answer.stats.accepted_per_position for answer in answers]
        counted = sum(row[position] for row in there if len(row) > position)
        assert s.metric("specdec_num_accepted_tokens_per_pos_total", position=str(position)) == counted
        there = [answer.stats.reached_per_position for answer in answers]
        judged = sum(row[position] for row in there if len(row) > position)
        assert s.metric("specdec_num_rejected_tokens_per_pos_total", position=str(position)) == judged - counted
    for field in ("drafts", "draft_tokens", "accepted_tokens"):
        assert s.metric(f"specdec_drafter_{field}_total", drafter="lm") == s.metric(TOTALS[field]), field
    reached = sum(sum(answer.stats.reached_per_position) for answer in answers)
    assert s.metric("specdec_drafter_judged_tokens_total", drafter="lm") == reached
    assert s.metric("specdec_metric_failures_total") == 0


@pytest.mark.scenario("B112", "B116")
async def test_rates_are_what_a_hand_count_gives(tmp_path: Path) -> None:
    """B112, B116: right, half right and wrong drafters in turn; counters add up and the bonus is no acceptance."""
    chosen: list[Propose] = []
    async with counting(tmp_path, propose=lambda context, k: chosen[-1](context, k)) as (s, _):
        answers: list[Answer] = []
        by_hand = {oracle: (50, 10, 40, 40), half: (30, 10, 38, 20), liar: (10, 10, 30, 0)}
        for propose, (tokens, cycles, drafted, accepted) in by_hand.items():
            chosen.append(propose)
            answers.append(await s.generate(token_ids=[1], max_tokens=tokens, temperature=0.0, num_draft_tokens=4))
            stats = answers[-1].stats
            assert (stats.cycles, stats.draft_tokens, stats.accepted_tokens) == (cycles, drafted, accepted)
            scrape_says_the_same(s, answers)
        assert s.metric("specdec_num_accepted_tokens_per_pos_total", position="2") == 10
        assert list(answers[1].stats.accepted_per_position) == [10, 10]
        reached = [list(answer.stats.reached_per_position) for answer in answers]
        assert reached == [[10, 10, 10, 10], [10, 10, 9], [9]], "in the last cycle there was room for fewer, or none"


async def test_every_chunk_tells_whose_draft_was_judged_and_what_came_of_it(tmp_path: Path) -> None:
    """And the statistics are the sum of the chunks. A cycle without a draft has no drafter."""
    async with counting(tmp_path, half) as (s, _):
        drafted = await s.generate(token_ids=[1], max_tokens=31, temperature=0.0, num_draft_tokens=4)
        plain = await s.generate(token_ids=[1], max_tokens=5, temperature=0.0, num_draft_tokens=0)
    assert {(c.drafter, c.num_draft_tokens, c.num_accepted_tokens) for c in plain.chunks} == {("", 0, 0)}
    assert dict(plain.stats.cycles_per_drafter) == {"": 5}
    assert [c.num_draft_tokens for c in drafted.chunks] == [4] * 9 + [3, 0], "no more than there is room for"
    assert all(c.draft_depth == c.num_draft_tokens for c in drafted.chunks), "chains"
    assert all(len(c.tokens) == c.num_accepted_tokens + 1 for c in drafted.chunks)
    assert dict(drafted.stats.cycles_per_drafter) == {"lm": 10, "": 1}
    assert drafted.stats.accepted_tokens == sum(c.num_accepted_tokens for c in drafted.chunks)


async def test_exact_alphas_come_with_the_chunk_whose_positions_they_belong_to(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(
            token_ids=[1], max_tokens=60, temperature=1.0, num_draft_tokens=3, verification="rejection"
        )
    for chunk in answer.chunks:
        reached = min(chunk.num_accepted_tokens + 1, chunk.draft_depth)
        assert len(chunk.exact_alphas) == reached
        assert all(0.0 <= alpha <= 1.0 + 1e-6 for alpha in chunk.exact_alphas)
    alphas = [alpha for chunk in answer.chunks for alpha in chunk.exact_alphas]
    assert answer.stats.exact_alpha_sum == pytest.approx(sum(alphas), rel=1e-5)
    assert sum(answer.stats.reached_per_position) == answer.stats.exact_alpha_count == len(alphas) > 20


@pytest.mark.scenario("B115")
@pytest.mark.parametrize(("stop", "max_tokens", "delivered", "cut"), [(3, 30, 2, 4), (None, 3, 3, 0)])
async def test_tokens_cut_behind_the_end_have_their_own_counter(
    tmp_path: Path, stop: int | None, max_tokens: int, delivered: int, cut: int
) -> None:
    """B115: a stop at offset 1 of a block of six; a limit at offset 2, which cuts the draft and not the block."""
    async with counting(tmp_path) as (s, _):
        answer = await s.generate(
            token_ids=[1],
            max_tokens=max_tokens,
            temperature=0.0,
            num_draft_tokens=5,
            stop=[] if stop is None else [chr(FIRST_LETTER + stop)],
        )
        scrape_says_the_same(s, [answer])
        assert s.metric("specdec_prompt_tokens_total") == 1
        assert s.metric("specdec_finishes_total", reason="length" if stop is None else "stop") == 1
    assert answer.complete is not None
    assert (len(answer.ids), answer.stats.cut_tokens) == (delivered, cut)
    assert answer.complete.usage.completion_tokens == delivered


async def test_times_bytes_and_requests_are_measured_once_per_request(tmp_path: Path) -> None:
    received = 0

    def weigh(message: Any) -> Any:
        nonlocal received
        received += message.ByteSize()
        return message

    async with counting(tmp_path) as (s, drafter):
        (target,) = (replica for replica in s.servers if replica is not drafter)
        target.wire = drafter.wire = weigh
        answer = await s.generate(token_ids=[1], max_tokens=20, temperature=0.0, num_draft_tokens=4)
        for name in ("time_to_first_token", "time_per_output_token", "request_duration"):
            assert s.metric(f"gen_ai_server_{name}_seconds_count") == 1, name
        phases = {p: s.metric("specdec_phase_seconds_count", phase=p) for p in ("draft", "verify", "accept", "commit")}
        assert set(phases.values()) == {answer.stats.cycles}
        assert s.metric("specdec_cycle_seconds_count") == answer.stats.cycles
        assert s.metric("specdec_network_seconds_count", phase="verify") == answer.stats.cycles
        assert s.metric("specdec_network_seconds_count", phase="draft") == answer.stats.drafts
        taken, within = (s.metric(f"specdec_{what}_seconds_sum", phase="verify") for what in ("phase", "network"))
        assert 0 < within < taken
    assert answer.stats.bytes_received == received
    assert answer.stats.bytes_sent > 0
    assert answer.stats.time_to_first_token > 0
    assert answer.stats.decode_seconds > 0
    assert answer.complete is not None
    assert answer.complete.usage.cached_tokens == 0


async def test_only_our_own_failures_are_counted_as_errors(tmp_path: Path) -> None:
    """What a caller asks wrongly, and whom we are too full for, is told apart: an error budget is spent by neither's
    fault alone."""
    folder = letters_folder(tmp_path / "m", 5)
    target = scripted_target(MARKOV_5, folder)
    async with stack(folder, [target], max_streams=1, request_timeout=0.3) as s:
        for wrong in ({"token_ids": [99]}, {"session_id": "nobody's", "received_tokens": 1}):
            with pytest.raises((InvalidArgument, NotFound)):
                await s.generate(**wrong)
        target.script = silent
        slow = asyncio.create_task(s.generate(token_ids=[1], max_tokens=4))
        await until(lambda: s.active == 1)
        with pytest.raises(ResourceExhausted):
            await s.generate(token_ids=[1], max_tokens=4)
        with pytest.raises(DeadlineExceeded):
            await slow
        counts = {o: s.metric("specdec_requests_total", outcome=o) for o in ("ok", "refused", "overloaded", "error")}
    assert counts == {"ok": 0, "refused": 2, "overloaded": 1, "error": 1}


async def test_a_draft_of_the_coordinators_own_crosses_no_network(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[1, 2, 1, 2, 1], max_tokens=20, num_draft_tokens=2, drafter="ngram")
        assert s.metric("specdec_network_seconds_count", phase="verify") == answer.stats.cycles
        assert s.metric("specdec_network_seconds_count", phase="draft") == 0
        assert s.metric("specdec_drafter_drafts_total", drafter="ngram") == answer.stats.drafts > 0


@pytest.mark.scenario("B113")
async def test_counters_never_fall_whatever_becomes_of_requests(tmp_path: Path) -> None:
    """B113: 120 requests that are rejected in part, cancelled, refused, or name a session that another holds or has
    ended; no metric call fails."""
    chance, begun = random.Random(2), [""]
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter], max_streams=16) as s:

        async def one() -> None:
            fields: dict[str, Any] = {"token_ids": [1], "max_tokens": chance.randrange(1, 30), "top_p": 0.9}
            fields["session_id"] = chance.choice(begun) if chance.random() < 0.2 else ""
            async with aclosing(s.client.generate(**fields, num_draft_tokens=chance.randrange(5))) as events:
                async for event in events:
                    if isinstance(event, Started):
                        begun.append(event.session_id)
                    if chance.random() < 0.05:
                        return

        await asyncio.gather(*(one() for _ in range(120)), return_exceptions=True)
        await until(lambda: s.active == 0)
        assert s.metric("specdec_metric_failures_total") == 0
        outcomes = {o: s.metric("specdec_requests_total", outcome=o) for o in ("ok", "cancelled", "overloaded")}
        assert min(outcomes.values()) > 0
        assert s.metric("specdec_num_accepted_tokens_total") <= s.metric("specdec_num_draft_tokens_total")


@pytest.mark.scenario("B113")
async def test_a_metrics_backend_that_fails_costs_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B113: the failure is counted, the answer is whole."""

    class Away(dict[Any, int]):
        def __setitem__(self, *_: object) -> None:
            raise RuntimeError("the backend is away")

    async with counting(tmp_path) as (s, _):
        monkeypatch.setattr(s.servicer._wiring.metrics.cycles, "_totals", Away({(): 0}))
        answer = await s.generate(token_ids=[1], max_tokens=20, temperature=0.0, num_draft_tokens=4)
        assert len(answer.ids) == 20
        assert s.metric("specdec_metric_failures_total") == answer.stats.cycles


OPTIONS: dict[str, Any] = {
    "support": 3,
    "max_draft_tokens": 9,
    "num_draft_tokens": 2,
    "max_context": 100,
    "max_streams": 7,
    "verify_timeout": 31.0,
    "draft_timeout": 9.0,
    "failover_timeout": 8.0,
    "request_timeout": 77.0,
    "session_lease": 6.0,
    "session_ttl": 70.0,
    "store_deadline": 1.5,
    "drain_grace": 3.0,
}


@pytest.mark.scenario("B124")
async def test_every_option_given_is_the_one_in_effect(tmp_path: Path) -> None:
    """B124: read back from the running coordinator, and seen where they matter: in the drafter's messages."""
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, info_overrides={"drafters": ("lm", "other")})
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter], **OPTIONS) as s:
        info = await s.client.info()
        answer = await s.generate(token_ids=[1], drafter="other", top_k=3, temperature=0.7)
        own = await s.generate(token_ids=[1], num_draft_tokens=1, max_tokens=20)
    for name, value in OPTIONS.items():
        assert float(info.config[name]) == value, name
    assert info.max_context == 100
    assert list(info.drafters) == ["lm", "other", "ngram"]
    assert len(answer.ids) == 99
    asked = drafter.sent(answer.started.session_id)
    assert {request.num_draft_tokens for request in asked[:-1]} == {2}
    assert {request.support for request in asked} == {3}
    assert asked[0].open.drafter == "other"
    assert (asked[0].open.params.top_k, asked[0].open.params.temperature) == (3, 0.7)
    assert answer.started.drafter == "other"
    assert {request.num_draft_tokens for request in drafter.sent(own.started.session_id)} == {1}
    assert answer.stats.drafts > 0
