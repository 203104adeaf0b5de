"""What the draft LM draws from, and that it says so: laws, draws, and the three ways to draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from transformers import AutoModelForCausalLM

from draft_service.drafters.lm import LmDrafter
from draft_service.session import DraftSession
from specdec.core.draft import Draft, DraftKind
from specdec.core.errors import DraftFault
from specdec.core.laws import check_draft, check_draws
from specdec.core.sampling import SamplingParams
from tests.draft_service.conftest import VOCAB
from tests.draft_service.jobs import GREEDY, draft_all, draft_one, job, random_ids, tokens
from tests.reference import reference_law, reference_tokens

NewDrafter = Callable[..., LmDrafter]
LogitsOf = Callable[[list[int]], NDArray[np.float32]]

PROMPT = [3, 17, 3, 9, 28, 9, 3]
PARAMS = {
    "plain": SamplingParams(),
    "temperature": SamplingParams(temperature=0.5),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(temperature=1.5, top_p=0.8),
    "min_p": SamplingParams(min_p=0.1),
    "penalties": SamplingParams(repetition_penalty=3.0, presence_penalty=1.5, frequency_penalty=1.0),
    "bias": SamplingParams(logit_bias=((3, 4.0), (5, -100.0)), min_tokens=9, end_ids=(9,)),
}
many_params = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())


@pytest.fixture(scope="module")
def logits_of(model_folder: Path) -> Iterator[LogitsOf]:
    """The stock model, recomputing everything for each token."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    def compute(context: list[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits: NDArray[np.float32] = model(torch.tensor([context])).logits[0, -1].numpy()
        return logits

    yield compute


def sampled(drafter: LmDrafter, params: SamplingParams, seeds: range, k: int, support: int = VOCAB) -> list[Draft]:
    """One draft per seed after PROMPT, from sessions that are used again."""
    drafts: list[Draft] = []
    sessions = [DraftSession() for _ in range(min(50, len(seeds)))]
    for start in range(seeds.start, seeds.stop, len(sessions)):
        jobs = [
            job(PROMPT, k, params, session, kind=DraftKind.SAMPLED, support=support, seed=start + i, turn_start=4)
            for i, session in enumerate(sessions)
        ]
        drafts += draft_all(drafter, jobs)
    return drafts


def goodness(drawn: list[int], q: NDArray[np.float64], ids: NDArray[np.uint32]) -> float:
    """p-value of `drawn` under q on ids; ids that q would draw less than five times are taken together."""
    law = np.zeros(VOCAB)
    law[ids] = q
    observed = np.bincount(drawn, minlength=VOCAB)
    expected = len(drawn) * law
    if observed[law == 0].any():
        return 0.0
    rare = expected < 5
    seen = np.append(observed[~rare], observed[rare].sum())
    due = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(seen[due > 0], due[due > 0]).pvalue)


@pytest.mark.scenario("B01")
@many_params
def test_proposals_have_the_frequencies_of_the_law_they_report(new_drafter: NewDrafter, params: SamplingParams) -> None:
    """A drafter that draws from filtered logits and reports the unfiltered law biases the output unseen."""
    drafts = sampled(new_drafter(), params, range(1000), k=2)
    first = drafts[0].laws[0]
    assert all((draft.laws[0].weights == first.weights).all() for draft in drafts)
    drawn = [tokens(draft)[0] for draft in drafts]
    assert goodness(drawn, first.q, first.ids) > 1e-6
    commonest = max(set(drawn), key=drawn.count)
    after = [draft for draft in drafts if tokens(draft)[0] == commonest and len(draft.laws) == 2]
    if after:
        assert goodness([tokens(draft)[1] for draft in after], after[0].laws[1].q, after[0].laws[1].ids) > 1e-6


@pytest.mark.scenario("B01")
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "penalties"])
def test_negative_control_the_unfiltered_law_does_not_explain_the_proposals(new_drafter: NewDrafter, name: str) -> None:
    """The injector of B01: the same proposals, the raw law reported."""
    drafter = new_drafter()
    drawn = [tokens(draft)[0] for draft in sampled(drafter, PARAMS[name], range(1000), k=1)]
    raw = sampled(drafter, SamplingParams(), range(1), k=1)[0].laws[0]
    assert goodness(drawn, raw.q, raw.ids) < 1e-6


@many_params
@pytest.mark.parametrize("support", [4, VOCAB])
def test_the_reported_law_is_the_targets_law_of_the_same_logits_cut_to_the_support(
    new_drafter: NewDrafter, logits_of: LogitsOf, params: SamplingParams, support: int
) -> None:
    for draft in sampled(new_drafter(), params, range(4), k=5, support=support):
        context = list(PROMPT)
        for token, law in zip(tokens(draft), draft.laws, strict=True):
            expected = reference_law(logits_of(context), context, 4, params)
            kept = sorted(range(VOCAB), key=lambda v: (-expected[v], v))[:support]
            cut = np.array([expected[v] if v in kept else 0.0 for v in range(VOCAB)])
            reported = np.zeros(VOCAB)
            reported[law.ids] = law.q
            np.testing.assert_allclose(reported, cut / cut.sum(), atol=2e-3)
            context.append(token)


@pytest.mark.scenario("B09")
@many_params
def test_the_redraw_from_the_reported_numbers_gives_every_token(
    new_drafter: NewDrafter, params: SamplingParams
) -> None:
    """Tokens drawn from one array and another one reported: the coordinator draws again, and sees it."""
    for seed, draft in enumerate(sampled(new_drafter(), params, range(100), k=5, support=7)):
        assert draft.kind is DraftKind.SAMPLED
        check_draft(draft, VOCAB)
        check_draws(draft, seed, len(PROMPT))


@pytest.mark.scenario("B09")
def test_negative_control_a_law_of_other_precision_fails_the_redraw(new_drafter: NewDrafter) -> None:
    """The injector of B09: weights rounded to bfloat16's eight bits after the draw."""
    failed = 0
    for seed, draft in enumerate(sampled(new_drafter(), SamplingParams(), range(400), k=5)):
        rounded = tuple(
            replace(law, weights=(law.weights.view(np.uint16) & 0xFFF8).view(np.float16)) for law in draft.laws
        )
        try:
            check_draws(replace(draft, laws=rounded), seed, len(PROMPT))
        except DraftFault:
            failed += 1
    assert failed > 0


def test_no_proposal_has_a_weight_of_zero(new_drafter: NewDrafter) -> None:
    for draft in sampled(new_drafter(), SamplingParams(top_k=3), range(100), k=4):
        for token, law in zip(tokens(draft), draft.laws, strict=True):
            assert law.weights[law.ids == token] > 0
            assert len(law.ids) <= 3


@pytest.mark.parametrize("k", [1, 2, 5, 16])
def test_greedy_drafts_are_the_greedy_tokens_of_transformers(
    new_drafter: NewDrafter, model_folder: Path, k: int
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    drafter = new_drafter()
    for seed in range(5):
        context = random_ids(seed, 10 + seed)
        expected = model.generate(torch.tensor([context]), max_new_tokens=k, do_sample=False)[0, len(context) :]
        draft = draft_one(drafter, job(context, k))
        assert tokens(draft) == expected.tolist()
        assert draft.kind is DraftKind.CHOSEN and not draft.coupled and not draft.laws


def test_greedy_params_make_a_chosen_draft_even_where_a_sampled_one_was_asked_for(new_drafter: NewDrafter) -> None:
    drafter = new_drafter()
    asked = draft_one(drafter, job(PROMPT, 4, GREEDY, kind=DraftKind.SAMPLED, support=8))
    assert asked.kind is DraftKind.CHOSEN
    assert tokens(asked) == tokens(draft_one(drafter, job(PROMPT, 4, GREEDY)))


@many_params
def test_coupled_drafts_are_the_draws_with_the_targets_noise(
    new_drafter: NewDrafter, logits_of: LogitsOf, params: SamplingParams
) -> None:
    """The oracle of algorithms.md, section 6: a drafter that is the target drafts what plain decoding emits."""
    drafter = new_drafter()
    for seed in (0, 42, 2**64 - 1):
        draft = draft_one(drafter, job(PROMPT, 6, params, seed=seed, turn_start=len(PROMPT)))
        expected = reference_tokens(logits_of, PROMPT, params, seed, 6)
        ends = [i for i, token in enumerate(expected) if token in params.end_ids]
        assert tokens(draft) == (expected[: ends[0] + 1] if ends else expected)
        assert draft.kind is DraftKind.CHOSEN and draft.coupled and not draft.laws


def test_a_chosen_draft_scores_the_tokens_it_expects_to_be_right(new_drafter: NewDrafter) -> None:
    drafter = new_drafter()
    for params in (GREEDY, SamplingParams()):
        scores = [draft_one(drafter, job(PROMPT, k, params, seed=7)).score for k in (1, 2, 4)]
        assert 0 < scores[0] < scores[1] < scores[2] < 4
    assert draft_one(drafter, job(PROMPT, 4, SamplingParams(), kind=DraftKind.SAMPLED, support=8)).score == 0


def test_a_draft_ends_after_an_id_that_ends_the_turn_and_keeps_it(new_drafter: NewDrafter) -> None:
    drafter = new_drafter()
    whole = tokens(draft_one(drafter, job(PROMPT, 8)))
    end = whole[3]
    cut = tokens(draft_one(drafter, job(PROMPT, 8, replace(GREEDY, end_ids=(end,)))))
    assert cut == whole[: whole.index(end) + 1]
    assert tokens(draft_one(drafter, job(PROMPT, 8, replace(GREEDY, end_ids=())))) == whole


def test_a_law_without_tokens_is_that_jobs_error_alone(new_drafter: NewDrafter) -> None:
    nothing = replace(SamplingParams(), logit_bias=tuple((v, -np.inf) for v in range(VOCAB)))
    refused, draft = draft_all(new_drafter(), [job(PROMPT, 3, nothing), job(PROMPT, 3)])
    assert refused.reason == "EMPTY_LAW"
    assert len(tokens(draft)) == 3


def test_ids_beyond_the_vocabulary_in_a_bias_are_refused(new_drafter: NewDrafter) -> None:
    wild = replace(SamplingParams(), logit_bias=((VOCAB, 1.0),))
    refused, draft = draft_all(new_drafter(), [job(PROMPT, 3, wild), job(PROMPT, 3)])
    assert refused.reason == "INVALID_ARGUMENT" and refused.field == "logit_bias_ids"
    assert len(tokens(draft)) == 3
