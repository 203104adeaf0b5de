from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec.core.errors import ResourceExhausted
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification
from specdec.edge.messages import OpenSession, Refusal, VerifyRequest
from specdec.lm.network import BLOCK
from target_service.engine import Engine
from target_service.session import VerifyJob
from tests.target_service.conftest import MAX_CONTEXT, VOCAB, MakeEngine
from tests.target_service.driver import GREEDY, Turn, generate, guesses, ids, long_pauses, run
from tests.target_service.test_engine import prompt


class Watched(Engine):
    """Writes down the rows of each forward, and fails on ids and positions that do not exist."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: list[int] = []
        compute = self._runner.compute

        def watched(segments: Any, layers: Any) -> Any:
            self.rows.append(sum(s.rows for s in segments))
            for s in segments:
                tokens = np.concatenate([s.token_ids, s.tree_ids])
                assert (tokens < VOCAB).all(), "an id outside the vocabulary"
                assert s.sequence.num_context + len(s.token_ids) <= MAX_CONTEXT, "a position beyond the last"
            return compute(segments, layers)

        self._runner.compute = watched  # type: ignore[method-assign, assignment]


def watched(engine: Engine) -> Watched:
    return Watched(engine._runner, engine.limits, clock=engine._clock)


@pytest.mark.scenario("B79")
def test_a_job_larger_than_the_budget_makes_progress_within_it(make_engine: MakeEngine) -> None:
    """At the head of the queue it made the batch empty for ever. Budget 8, a tree of 15 nodes behind 40 tokens."""
    engine = watched(make_engine(token_budget=8))
    truth = prompt(40) + generate(make_engine(), prompt(40), 20)
    big = Turn(prompt(40), 20, guesses(truth, 10, 5, VOCAB), session_id="big")
    small = [Turn(prompt(2, i), 20, session_id=str(i)) for i in range(3)]
    run(engine, [big, *small])
    assert big.output == truth[40:]
    assert max(engine.rows) <= 8
    assert [t.output for t in small] == [generate(make_engine(), prompt(2, i), 20) for i in range(3)]


@pytest.mark.scenario("B78")
@pytest.mark.parametrize("budget", range(1, 9))
def test_every_budget_runs_with_every_draft_length(make_engine: MakeEngine, budget: int) -> None:
    """Small batch limits against k: the expanded batch exceeded what was prepared."""
    truth = prompt(9) + generate(make_engine(), prompt(9), 12)
    for k in range(1, 9):
        engine = watched(make_engine(token_budget=budget))
        turns = [Turn(prompt(9), 12, guesses(truth, k // 2, k - k // 2, VOCAB), session_id=str(i)) for i in range(2)]
        run(engine, turns)
        assert [t.output for t in turns] == [truth[9:]] * 2
        assert max(engine.rows) <= budget


@pytest.mark.scenario("B75")
def test_a_job_that_is_skipped_and_preempted_sends_no_invalid_id(make_engine: MakeEngine) -> None:
    """Place-holder ids of a skipped request went to the model. Little budget and little memory at once."""
    alone = [generate(make_engine(), prompt(10, i), 15) for i in range(4)]
    engine = watched(make_engine(token_budget=10, kv_tokens=60, clock=long_pauses()))
    turns = [
        Turn(prompt(10, i), 15, guesses(prompt(10, i) + alone[i], 2, 1, VOCAB), session_id=str(i)) for i in range(4)
    ]
    run(engine, turns)
    assert [t.output for t in turns] == alone
    assert sum(r.computed_tokens for t in turns for r in t.results) > 4 * 25, "nobody was preempted"
    assert engine.kv_free == engine.kv_total


@pytest.mark.scenario("B73")
def test_context_up_to_the_last_position_and_not_one_further(make_engine: MakeEngine) -> None:
    """prompt + max_tokens fits exactly, and the draft may not reach beyond it."""
    engine = watched(make_engine())
    length = 10
    given = prompt(MAX_CONTEXT - length)
    truth = given + generate(make_engine(), given, length)
    assert generate(engine, given, length, draft=guesses(truth, 4, 1, VOCAB)) == truth[len(given) :]
    opening = OpenSession("over", GREEDY, 0, 1)
    request = VerifyRequest(0, 0, ids(truth[: MAX_CONTEXT - 2]), DraftTree.chain([1, 2, 3]))
    job = VerifyJob(engine.open(opening), request)
    [(_, result)] = engine.step([job])
    assert isinstance(result.result, Refusal)
    assert result.result.field == "token_ids"


@pytest.mark.scenario("B77")
def test_plain_rows_drafts_and_a_prefill_share_a_step_near_the_end_of_a_context(make_engine: MakeEngine) -> None:
    """A backend that expected equal row lengths broke when one request had no room for a draft."""
    near = prompt(MAX_CONTEXT - 6, 99)
    specs = [(near, 6), *((prompt(8, i), 12) for i in range(7)), (prompt(100, 50), 12)]
    alone = [generate(make_engine(), p, n) for p, n in specs]
    turns = [
        Turn(p, n, guesses(p + out, 3, 1, VOCAB), session_id=str(i), start=3 if len(p) == 100 else 0)
        for i, ((p, n), out) in enumerate(zip(specs, alone, strict=True))
    ]
    run(make_engine(kv_tokens=4000), turns)
    assert [t.output for t in turns] == alone


@pytest.mark.scenario("B30")
def test_memory_for_exactly_one_job_is_enough_and_one_token_less_is_a_refusal(make_engine: MakeEngine) -> None:
    """k = 7: rows for all of it, or a refusal before any is written."""
    for length, fits in ((2 * BLOCK - 7, True), (2 * BLOCK - 6, False)):
        truth = prompt(length) + generate(make_engine(), prompt(length), 8)
        request = VerifyRequest(0, 0, ids(truth[:length]), guesses(truth, 7, 0, VOCAB)(truth[:length]))
        engine = make_engine(kv_tokens=2 * BLOCK)
        session = engine.open(OpenSession("s", GREEDY, 0, 20))
        [(_, result)] = engine.step([VerifyJob(session, request)])
        assert isinstance(result.result, Verification) == fits
        if isinstance(result.result, Refusal):
            assert (result.result.reason, engine.kv_free) == ("OVERLOADED", engine.kv_total)
        engine.close(session)
        assert engine.kv_free == engine.kv_total == 2 * BLOCK


def test_a_job_that_finds_no_room_waits_for_those_that_have_it_and_is_not_overtaken(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_tokens=4 * BLOCK, token_budget=10)
    jobs = []
    for i, n in enumerate((50, 100, 30)):  # blocks: 2, 4, 1
        opening = OpenSession(str(i), GREEDY, 0, 1)
        jobs.append(VerifyJob(engine.open(opening), VerifyRequest(0, 0, ids(prompt(n, i)), open=opening)))
    order: list[int] = []
    pending = list(jobs)
    while pending:
        for job, result in engine.step(pending):
            assert isinstance(result.result, Verification)
            order.append(jobs.index(job))
            pending.remove(job)
    assert order == [0, 1, 2]


def test_only_one_job_of_a_session_runs_at_a_time(make_engine: MakeEngine) -> None:
    engine = make_engine()
    session = engine.open(OpenSession("s", GREEDY, 0, 1))
    first = VerifyJob(session, VerifyRequest(0, 0, ids(prompt(10))))
    second = VerifyJob(session, VerifyRequest(1, 0, ids(prompt(20, 1))))
    assert [job for job, _ in engine.step([first, second])] == [first]
    assert [job for job, _ in engine.step([second])] == [second]


def test_sessions_beyond_the_limit_are_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sessions=1)
    session = engine.open(OpenSession("a", GREEDY, 0, 1))
    with pytest.raises(ResourceExhausted):
        engine.open(OpenSession("b", GREEDY, 0, 1))
    engine.close(session)
    engine.open(OpenSession("b", GREEDY, 0, 1))


def test_the_report_counts_rows_draws_and_held_tokens(make_engine: MakeEngine) -> None:
    reports: list[Any] = []
    engine = make_engine(report=reports.append)
    truth = prompt(10) + generate(make_engine(), prompt(10), 8)
    run(engine, [Turn(prompt(10), 8, guesses(truth, 3, 0, VOCAB))])
    assert [(r.jobs, r.rows, r.draws, r.kv_hits) for r in reports] == [(1, 13, 4, 0), (1, 4, 4, 13)]
    assert all(r.prefix_hits == r.evictions == 0 for r in reports)
