"""The draft LM over time: its KV and its batches. The oracle is a drafter that has seen nothing before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from draft_service.drafters import DraftJob
from draft_service.drafters.lm import LmDrafter
from draft_service.session import DraftSession
from specdec.core.draft import DraftKind
from specdec.core.errors import InvalidArgument
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.kv import KVSequence
from specdec.lm.loading import LoadedModel, load_model
from specdec.lm.network import BLOCK
from specdec.lm.runner import Runner
from specdec.lm.torch_kv import TorchKV
from tests.draft_service.conftest import MAX_CONTEXT, VOCAB, Clock, TickingRunner
from tests.draft_service.jobs import GREEDY, draft_all, draft_one, ids, job, random_ids, tokens

NewDrafter = Callable[..., LmDrafter]

COUPLED = SamplingParams(temperature=0.8, repetition_penalty=1.3)


def held(drafter: LmDrafter, session: DraftSession) -> list[int]:
    """Ids whose KV the drafter holds for the session."""
    return [int(token) for token in drafter._sequences[session].token_ids]


@pytest.fixture(scope="module")
def truth(model_folder: Path) -> list[int]:
    """A prompt of 9 tokens and 64 more that the model itself, as target, goes on with greedily."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    prompt = torch.tensor([random_ids(1, 9)])
    out: list[int] = model.generate(prompt, max_new_tokens=64, do_sample=False)[0].tolist()
    return out


def acceptance(drafter: LmDrafter, truth: list[int], k: int) -> tuple[int, int]:
    """(drafted, accepted) over cycles in which the target is the drafter's own model; checks the KV on the way."""
    session, n, drafted, accepted = DraftSession(), 9, 0, 0
    while n + k < len(truth):
        guesses = tokens(draft_one(drafter, job(truth[:n], k, session=session)))
        right = next((i for i, g in enumerate(guesses) if g != truth[n + i]), len(guesses))
        drafted, accepted = drafted + len(guesses), accepted + right
        assert held(drafter, session) == [*truth[:n], *guesses[:-1]]
        n += right + 1
    return drafted, accepted


@pytest.mark.scenario("B19")
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_an_oracle_is_always_right(new_drafter: NewDrafter, truth: list[int], k: int) -> None:
    """After a block that was accepted whole, the last draft token is not in the draft's KV yet: it must be computed."""
    drafted, accepted = acceptance(new_drafter(), truth, k)
    assert drafted == accepted >= 25


@pytest.mark.scenario("B19")
def test_negative_control_a_cache_that_lacks_the_last_draft_token_loses_acceptance(
    new_drafter: NewDrafter, truth: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The injector of B19: the bonus token is taken for the draft token that was never fed back."""
    rewind = KVSequence.rewind

    def skip_one(self: KVSequence, token_ids: Ids) -> int:
        kept = rewind(self, token_ids)
        if kept and kept < len(token_ids):
            self.reserve(kept + 1)
            self.append(token_ids[kept : kept + 1], ids([]), np.zeros(0, dtype=np.int64))
        return self.num_context

    monkeypatch.setattr(KVSequence, "rewind", skip_one)
    drafted, accepted = acceptance(new_drafter(), truth, 3)
    assert accepted < drafted


def test_after_a_whole_block_only_its_last_token_and_the_bonus_are_computed(
    new_drafter: NewDrafter, truth: list[int]
) -> None:
    drafter, session = new_drafter(), DraftSession()
    for n in range(9, 50, 5):
        draft_one(drafter, job(truth[:n], 4, session=session))
        assert session.computed_tokens == (9 if n == 9 else 2)
        session.computed_tokens = 0


def variety(seed: int) -> DraftJob:
    """A job of any context, length, way of drafting and params."""
    rng = np.random.default_rng(seed)
    params = [GREEDY, SamplingParams(), COUPLED, SamplingParams(top_k=4, temperature=1.3)][rng.integers(4)]
    kind = [DraftKind.CHOSEN, DraftKind.SAMPLED][rng.integers(2)]
    context = random_ids(seed, int(rng.integers(1, 40)))
    return job(context, int(rng.integers(1, 7)), params, kind=kind, support=9, seed=seed, turn_start=len(context) // 2)


def test_a_draft_does_not_depend_on_its_batch_mates(new_drafter: NewDrafter) -> None:
    """Lengths, modes, params and k all differ; those with a smaller k drop out on the way."""
    together = draft_all(new_drafter(), [variety(seed) for seed in range(24)])
    for seed, draft in enumerate(together):
        alone = draft_one(new_drafter(), variety(seed))
        assert tokens(draft) == tokens(alone) and draft.kind == alone.kind
        for law, other in zip(draft.laws, alone.laws, strict=True):
            assert (law.ids == other.ids).all()
            np.testing.assert_allclose(law.q, other.q, rtol=1e-2)


def test_every_session_gets_as_many_tokens_as_it_asked_for(new_drafter: NewDrafter) -> None:
    jobs = [variety(seed) for seed in range(24)]
    for one, draft in zip(jobs, draft_all(new_drafter(), jobs), strict=True):
        assert draft.tree.num_draft_tokens == one.num_draft_tokens


def test_a_finished_job_does_not_wait_for_longer_ones(new_drafter: NewDrafter) -> None:
    short, long = new_drafter().propose([job(random_ids(1, 5), 1), job(random_ids(2, 5), 6)])
    assert short is not None and long is None


def test_any_sequence_of_growth_and_rollback_drafts_as_a_fresh_drafter_does(new_drafter: NewDrafter) -> None:
    drafter, rng = new_drafter(token_budget=7), np.random.default_rng(5)
    sessions = [DraftSession() for _ in range(3)]
    contexts = [random_ids(i, 12) for i in range(3)]
    for step in range(40):
        i = int(rng.integers(3))
        match rng.integers(4):
            case 0:  # some of the draft came true, then something else did
                draft = draft_one(drafter, job(contexts[i], 5, session=sessions[i]))
                contexts[i] = [*contexts[i], *tokens(draft)[: rng.integers(6)], int(rng.integers(VOCAB))]
            case 1:
                contexts[i] = contexts[i][: rng.integers(1, len(contexts[i]) + 1)]
            case 2:
                contexts[i] = [*contexts[i][: rng.integers(len(contexts[i]))], *random_ids(step, 9)]
            case _:
                contexts[i] = [*contexts[i], *random_ids(step, 3)]
        contexts[i] = contexts[i][:80]
        jobs = [job(c, 4, COUPLED, s, seed=step) for c, s in zip(contexts, sessions, strict=True)]
        fresh = [job(c, 4, COUPLED, seed=step) for c in contexts]
        drafts, expected = draft_all(drafter, jobs), draft_all(new_drafter(), fresh)
        assert [tokens(d) for d in drafts] == [tokens(d) for d in expected]


@pytest.mark.parametrize("budget", [1, 5, 64])
def test_the_token_budget_changes_how_a_context_is_computed_and_nothing_else(
    loaded: LoadedModel, metrics: ReplicaMetrics, new_drafter: NewDrafter, budget: int
) -> None:
    runner = TickingRunner(loaded, 4096, Clock(), 0.0, 0.0)
    drafter = LmDrafter(runner, metrics, token_budget=budget)
    contexts = [random_ids(i, n) for i, n in enumerate((50, 3, 21))]
    drafts = draft_all(drafter, [job(context, 3) for context in contexts])
    expected = draft_all(new_drafter(), [job(context, 3) for context in contexts])
    assert [tokens(d) for d in drafts] == [tokens(d) for d in expected]
    assert max(runner.rows) <= budget
    assert sum(runner.rows) == 50 + 3 + 21 + 3 * 2


def test_a_long_context_does_not_hold_up_the_others(new_drafter: NewDrafter) -> None:
    drafter = new_drafter(token_budget=10)
    long, short = job(random_ids(1, 150), 3), job(random_ids(2, 4), 3)
    rounds = 0
    outcomes = drafter.propose([long, short])
    while outcomes[1] is None:
        outcomes = drafter.propose([long, short])
        rounds += 1
    assert rounds == 2 and outcomes[0] is None
    assert len(tokens(draft_one(drafter, long))) == 3


@pytest.mark.scenario("B69")
@pytest.mark.scenario("B73")
@pytest.mark.parametrize("room", [12, 5, 4, 2, 1, 0, -1, -20])
def test_no_position_beyond_the_window_is_computed_and_no_token_beyond_it_drafted(
    new_drafter: NewDrafter, room: int
) -> None:
    """Near the end of the context k is cut to what is left; at the end there is no draft, and no error."""
    drafter, session = new_drafter(), DraftSession()
    context = random_ids(3, MAX_CONTEXT - room)
    draft = draft_one(drafter, job(context, 5, session=session))
    assert draft.tree.num_draft_tokens == max(0, min(5, room))
    assert len(held(drafter, session)) < MAX_CONTEXT
    assert len(tokens(draft_one(drafter, job(context[:20], 5, session=session)))) == 5


@pytest.mark.scenario("B71")
def test_the_window_is_the_models_or_the_pools_whichever_is_smaller(new_drafter: NewDrafter) -> None:
    """The effective limit of a drafter is visible in its Info."""
    assert new_drafter().model.max_context == MAX_CONTEXT
    small = new_drafter(kv_tokens=2 * BLOCK)
    assert small.model.max_context == 2 * BLOCK
    assert draft_one(small, job(random_ids(1, 2 * BLOCK - 2), 5)).tree.num_draft_tokens == 2


@pytest.mark.scenario("B91")
def test_a_full_pool_evicts_and_drafts_on(new_drafter: NewDrafter) -> None:
    """Sessions that stay open and fill the draft's KV must not turn speculation off."""
    drafter = new_drafter(kv_tokens=4 * BLOCK)
    sessions = [DraftSession() for _ in range(4)]
    for seed, session in enumerate([*sessions, *sessions]):
        draft = draft_one(drafter, job(random_ids(seed % 4, 40), 5, session=session))
        assert tokens(draft) == tokens(draft_one(new_drafter(), job(random_ids(seed % 4, 40), 5)))
        assert 0 <= drafter.kv_free <= 4 * BLOCK


@pytest.mark.scenario("B91")
def test_the_least_recently_drafted_session_is_evicted_first(new_drafter: NewDrafter) -> None:
    """...and only as many as are needed. What is left of it in the cache is found again."""
    drafter = new_drafter(kv_tokens=5 * BLOCK)
    first, second, third = sessions = [DraftSession() for _ in range(3)]

    def computed(session: DraftSession) -> int:
        session.computed_tokens = 0
        draft_one(drafter, job(random_ids(sessions.index(session), 60), 3, session=session))
        return session.computed_tokens

    assert [computed(session) for session in (first, second, first, third)] == [60, 60, 1, 60]
    assert first in drafter._sequences and second not in drafter._sequences
    assert computed(first) == 1
    assert computed(second) == 60 - BLOCK and third not in drafter._sequences


def test_a_new_stream_finds_the_context_of_the_last_one(
    loaded: LoadedModel, metrics: ReplicaMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation comes back with each turn, on a stream of its own; so does a prompt that many share."""
    hits: dict[str, int] = {}

    def count(tokens: int, *, tier: str) -> None:
        hits[tier] = hits.get(tier, 0) + tokens

    monkeypatch.setattr(metrics.kv_hit_tokens, "add", count)
    drafter = LmDrafter(Runner(loaded, 4096), metrics, token_budget=256)
    context = random_ids(1, 100)
    drafts = []
    for n, computed in ((70, 70), (90, 90 - 2 * BLOCK), (100, 100 - 2 * BLOCK), (100, 100 - 3 * BLOCK)):
        session = DraftSession()
        drafts.append(tokens(draft_one(drafter, job(context[:n], 4, session=session))))
        assert session.computed_tokens == computed
        drafter.close(session)
    fresh = LmDrafter(Runner(loaded, 4096), metrics, token_budget=256)
    assert drafts == [tokens(draft_one(fresh, job(context[:n], 4))) for n in (70, 90, 100, 100)]
    assert hits["prefix"] == (2 + 2 + 3) * BLOCK + (2 + 2 + 3) * BLOCK and hits["memory"] == 0


def test_warming_up_leaves_nothing_to_be_found(new_drafter: NewDrafter) -> None:
    drafter, session = new_drafter(), DraftSession()
    drafter.warm_up()
    draft_one(drafter, job([0] * 100, 1, session=session))
    assert session.computed_tokens == 100


def test_jobs_that_do_not_fit_together_get_shorter_drafts_or_none(new_drafter: NewDrafter) -> None:
    drafter = new_drafter(kv_tokens=3 * BLOCK)
    sessions = [DraftSession() for _ in range(3)]
    jobs = [job(random_ids(i, BLOCK - 2), 8, session=s) for i, s in enumerate(sessions)]
    assert [draft.tree.num_draft_tokens for draft in draft_all(drafter, jobs)] == [8, 3, 0]
    assert len(tokens(draft_one(drafter, job(random_ids(2, BLOCK - 2), 8, session=sessions[2])))) == 8


@pytest.mark.scenario("B90")
def test_closing_gives_everything_back(new_drafter: NewDrafter) -> None:
    """Also in the middle of a prefill, and of a draft."""
    drafter = new_drafter(token_budget=8)
    jobs = [job(random_ids(i, 1 + 7 * i), 4) for i in range(8)]
    drafter.propose(jobs)
    assert drafter.kv_free < drafter.kv_total
    for one in jobs:
        drafter.close(one.session)
        drafter.close(one.session)
    assert drafter.kv_free == drafter.kv_total and not drafter._sequences and not drafter._chains


def test_a_job_that_was_given_up_does_not_leak_into_the_next_of_its_session(new_drafter: NewDrafter) -> None:
    drafter, session = new_drafter(token_budget=4), DraftSession()
    drafter.propose([job(random_ids(1, 30), 4, session=session)])
    other = random_ids(2, 20)
    assert tokens(draft_one(drafter, job(other, 4, session=session))) == tokens(draft_one(new_drafter(), job(other, 4)))


def test_an_empty_context_is_refused(new_drafter: NewDrafter) -> None:
    [refused] = draft_all(new_drafter(), [job([], 4)])
    assert isinstance(refused, InvalidArgument) and refused.field == "token_ids"


def test_a_poisoned_cache_is_one_jobs_error_and_is_computed_afresh(model_folder: Path, metrics: ReplicaMetrics) -> None:
    """Full blocks too: nobody finds again what made NaN."""
    runner = Runner(load_model(str(model_folder), dtype="float32", device="cpu", network="stock"), 4096)
    drafter, sick, well = LmDrafter(runner, metrics, token_budget=256), DraftSession(), DraftSession()
    context, other = random_ids(1, 40), random_ids(2, 40)
    healthy = [tokens(draft_one(drafter, job(c, 3, session=s))) for c, s in ((context, sick), (other, well))]
    assert isinstance(runner._storage, TorchKV)
    runner._storage.data[:, :, :, drafter._sequences[sick].rows(0, 40)] = float("nan")
    refused, draft = draft_all(drafter, [job(context, 3, session=sick), job(other, 3, session=well)])
    assert refused.reason == "NAN_LOGITS" and tokens(draft) == healthy[1]
    assert tokens(draft_one(drafter, job(context, 3, session=sick))) == healthy[0]
