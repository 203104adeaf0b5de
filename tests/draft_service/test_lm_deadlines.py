"""The draft LM and its deadlines. Forwards of 10 ms, and of 1 ms more per row where a test says so; time moves in
forwards only."""

from __future__ import annotations

import pytest

from draft_service.drafters.lm import LmDrafter
from draft_service.session import DraftSession
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.loading import LoadedModel
from tests.draft_service.conftest import Clock, TickingRunner
from tests.draft_service.jobs import draft_all, draft_one, job, random_ids, tokens


@pytest.fixture
def clock() -> Clock:
    return Clock()


def new_drafter(
    loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock, *, per_row: float = 0.0, budget: int = 256
) -> LmDrafter:
    runner = TickingRunner(loaded, 4096, clock, 0.010, per_row)
    drafter = LmDrafter(runner, metrics, token_budget=budget, clock=clock)
    drafter.warm_up()
    return drafter


@pytest.mark.parametrize(("budget_ms", "expected"), [(9, 0), (11, 1), (35, 3), (61, 6), (1000, 6)])
def test_a_draft_has_as_many_tokens_as_there_is_time_for(
    loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock, budget_ms: int, expected: int
) -> None:
    drafter = new_drafter(loaded, metrics, clock)
    deadline = clock.now + budget_ms / 1e3
    draft = draft_one(drafter, job(random_ids(1, 4), 6, deadline=deadline))
    assert draft.tree.num_draft_tokens == expected
    assert clock.now <= deadline


def test_nothing_is_computed_after_the_deadline(loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock) -> None:
    drafter, before = new_drafter(loaded, metrics, clock), clock.now
    assert draft_one(drafter, job(random_ids(1, 4), 6, deadline=before)).tree.num_draft_tokens == 0
    assert clock.now == before


def test_a_hurried_job_neither_delays_nor_shortens_its_mates(
    loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock
) -> None:
    drafter, start = new_drafter(loaded, metrics, clock), clock.now
    hurried, patient = job(random_ids(1, 4), 6, deadline=start + 0.025), job(random_ids(2, 4), 6)
    first = drafter.propose([hurried, patient])
    assert first[0] is not None and first[1] is None
    assert clock.now <= start + 0.025
    assert len(tokens(draft_one(drafter, patient))) == 6


def test_a_long_context_is_caught_up_with_over_several_budgets(
    loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock
) -> None:
    drafter, session = new_drafter(loaded, metrics, clock, per_row=0.001, budget=32), DraftSession()
    context, lengths = random_ids(1, 120), []
    for _ in range(8):
        deadline = clock.now + 0.060
        draft = draft_one(drafter, job(context, 4, session=session, deadline=deadline))
        lengths.append(draft.tree.num_draft_tokens)
        assert clock.now <= deadline
    assert lengths[0] == 0 and lengths[-1] == 4
    assert session.computed_tokens == 120 + lengths[lengths.index(4) :].count(4) - 1 + sum(0 < n < 4 for n in lengths)


def test_a_chunk_is_cut_to_what_its_mates_have_time_for(
    loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock
) -> None:
    drafter = new_drafter(loaded, metrics, clock, per_row=0.001, budget=128)
    long, short = job(random_ids(1, 140), 4), job(random_ids(2, 2), 3, deadline=clock.now + 0.090)
    outcomes = draft_all(drafter, [long, short])
    assert [len(tokens(draft)) for draft in outcomes] == [4, 3]


def test_mates_in_a_hurry_do_not_keep_a_long_context_from_ever_being_computed(
    loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock
) -> None:
    """Short jobs, one after another, each with hardly more time than its own forwards take."""
    drafter = new_drafter(loaded, metrics, clock, per_row=0.0001, budget=64)
    long, contexts = job(random_ids(1, 140), 4), [random_ids(i, 6) for i in range(20)]
    for context in contexts:
        hurried = job(context, 4, deadline=clock.now + 0.0415)
        outcomes: list[object] = [None, None]
        while outcomes[1] is None and outcomes[0] is None:
            outcomes = list(drafter.propose([long, hurried]))
        if outcomes[0] is not None:
            return
    raise AssertionError("the long context got no draft")


def test_one_slow_forward_does_not_end_drafting(loaded: LoadedModel, metrics: ReplicaMetrics, clock: Clock) -> None:
    drafter, session = new_drafter(loaded, metrics, clock), DraftSession()
    for rows in (1, 2, 4, 8):
        for _ in range(20):
            drafter._cost.observe(rows, 5.0)
    lengths = [
        draft_one(drafter, job(random_ids(1, 4), 2, session=session, deadline=clock.now + 0.1)).tree.num_draft_tokens
        for _ in range(30)
    ]
    assert lengths[0] == 0 and lengths[-1] == 2
