"""Drafts over cut heads: laws, draws and scores of the ids that are left, told in the target's ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from draft_service.__main__ import load_drafters
from draft_service.config import DraftConfig
from draft_service.drafters import lm, self_draft
from draft_service.drafters.lm import LmDrafter
from draft_service.session import DraftSession
from specdec.core.acceptance import token_rule
from specdec.core.block import block_rule
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import ConfigError, DraftFault
from specdec.core.laws import check_draft, check_draws
from specdec.core.sampling import SamplingParams
from specdec.core.verification import VerifyForm
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.id_map import IdMap
from tests.core.cycles import Cycling
from tests.core.integration import assert_lawful
from tests.core.toys import CHAIN, Tokens, Toy, random_toy, sequence_law
from tests.draft_service.conftest import VOCAB
from tests.draft_service.jobs import GREEDY, draft_all, draft_one, job, random_ids, tokens
from tests.draft_service.test_lm_laws import PARAMS, PROMPT
from tests.lm.test_draft_model import draft_folder
from tests.reference import reference_law, reference_y
from tests.tiny_models import make_tiny_model

KEPT = (0, 3, 5, 8, 9, 14, 17, 22, 30)
WIDE = 700  # ids, more than a coupled draft races over
many_params = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
LogitsOf = Callable[[list[int]], NDArray[np.float32]]


def ids_file(folder: Path, ids: Any) -> str:
    file = folder / "ids.txt"
    file.write_text("\n".join(map(str, ids)))
    return str(file)


def cut_drafter(model: Path, head_ids: str, metrics: ReplicaMetrics, **settings: Any) -> LmDrafter:
    settings = {"dtype": "float32", "kv_tokens": 4096, **settings}
    config = DraftConfig(drafters=("lm",), model=str(model), head_ids=head_ids, threads=1, **settings)
    return lm.build(config, metrics, None)


@pytest.fixture(scope="module")
def cut_logits(model_folder: Path) -> LogitsOf:
    """The stock model's logits, recomputed for each token, -inf but for the ids that are left."""
    return masked_logits(model_folder, KEPT)


def masked_logits(folder: Path, kept: Any) -> LogitsOf:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def compute(context: list[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits: NDArray[np.float32] = model(torch.tensor([context])).logits[0, -1].numpy()
        masked = np.full_like(logits, -np.inf)
        masked[list(kept)] = logits[list(kept)]
        return masked

    return compute


@pytest.fixture
def drafter(model_folder: Path, metrics: ReplicaMetrics, tmp_path: Path) -> LmDrafter:
    return cut_drafter(model_folder, ids_file(tmp_path, KEPT), metrics)


def sampled(drafter: LmDrafter, params: SamplingParams, seed: int, k: int = 5, support: int = VOCAB) -> Draft:
    return draft_one(drafter, job(PROMPT, k, params, kind=DraftKind.SAMPLED, support=support, seed=seed, turn_start=4))


@pytest.mark.scenario("B01")
@many_params
@pytest.mark.parametrize("support", [4, VOCAB])
def test_the_reported_law_is_that_of_the_ids_that_are_left(
    drafter: LmDrafter, cut_logits: LogitsOf, params: SamplingParams, support: int
) -> None:
    """Penalties count every token of prompt and path, under its own id; bias and ends speak of the target's ids."""
    for seed in range(4):
        draft, context = sampled(drafter, params, seed, support=support), list(PROMPT)
        check_draft(draft, VOCAB)
        check_draws(draft, seed, len(PROMPT))
        for token, law in zip(tokens(draft), draft.laws, strict=True):
            expected = reference_law(cut_logits(context), context, 4, params)
            likely = sorted(range(VOCAB), key=lambda v: (-expected[v], v))[:support]
            cut = np.array([expected[v] if v in likely else 0.0 for v in range(VOCAB)])
            reported = np.zeros(VOCAB)
            reported[law.ids] = law.q
            np.testing.assert_allclose(reported, cut / cut.sum(), atol=2e-3)
            assert set(law.ids.tolist()) <= set(KEPT)
            context.append(token)


@pytest.mark.scenario("B09")
def test_negative_control_a_law_in_columns_instead_of_ids_fails_the_redraw(drafter: LmDrafter) -> None:
    failed = 0
    for seed in range(20):
        draft = sampled(drafter, SamplingParams(), seed)
        columns = tuple(DraftLaw(IdMap(np.array(KEPT, np.uint32)).columns(law.ids), law.weights) for law in draft.laws)
        try:
            check_draws(replace(draft, laws=columns), seed, len(PROMPT))
        except DraftFault:
            failed += 1
    assert failed > 10


@many_params
@pytest.mark.parametrize("greedy", [False, True])
def test_chosen_drafts_are_what_the_target_would_draw_if_it_had_these_ids_alone(
    drafter: LmDrafter, cut_logits: LogitsOf, params: SamplingParams, greedy: bool
) -> None:
    params = replace(params, temperature=0.0) if greedy else params
    for seed in (0, 42, 2**64 - 1):
        draft, context = draft_one(drafter, job(PROMPT, 6, params, seed=seed, turn_start=4)), list(PROMPT)
        assert draft.kind is DraftKind.CHOSEN and draft.coupled == (not greedy)
        for token in tokens(draft):
            law = reference_law(cut_logits(context), context, 4, params)
            assert token == reference_y(law, seed, len(context))
            context.append(token)
        assert len(tokens(draft)) == 6 or tokens(draft)[-1] in params.end_ids


def test_a_wide_head_is_raced_over_its_likeliest_columns_with_the_targets_noise(
    tmp_path: Path, metrics: ReplicaMetrics
) -> None:
    folder = make_tiny_model(tmp_path / "m", vocab_size=WIDE, hidden=32, max_context=64, std=0.02)
    kept = range(0, WIDE, 2)
    drafter, logits_of = cut_drafter(folder, ids_file(tmp_path, kept), metrics), masked_logits(folder, kept)
    beyond = 0
    for seed in range(30):
        [token] = tokens(draft_one(drafter, job(PROMPT, 1, SamplingParams(), seed=seed)))
        law = reference_law(logits_of(PROMPT), PROMPT, 0, SamplingParams())
        beyond += reference_y(law, seed, len(PROMPT)) != token
        law[sorted(range(WIDE), key=lambda v: (-law[v], v))[256:]] = 0.0
        assert token == reference_y(law, seed, len(PROMPT))
    assert 0 < beyond < 25, "a law this flat has winners among the columns that do not race"


def test_scores_stay_sums_of_probabilities(drafter: LmDrafter) -> None:
    for params in (GREEDY, SamplingParams()):
        scores = [draft_one(drafter, job(PROMPT, k, params, seed=7)).score for k in (1, 2, 4)]
        assert 0 < scores[0] < scores[1] < scores[2] < 4
    assert sampled(drafter, SamplingParams(), 1).score == 0


@pytest.mark.parametrize("kind", [DraftKind.CHOSEN, DraftKind.SAMPLED])
def test_where_no_id_is_left_the_draft_ends_and_nothing_is_refused(drafter: LmDrafter, kind: DraftKind) -> None:
    """The target has tokens to emit: that the drafter has none is no fault of the request."""
    nothing = replace(SamplingParams(), logit_bias=tuple((v, -np.inf) for v in KEPT))
    draft, other = draft_all(
        drafter, [job(PROMPT, 3, nothing, kind=kind, support=4), job(PROMPT, 3, kind=kind, support=4)]
    )
    assert isinstance(draft, Draft) and tokens(draft) == [] and len(tokens(other)) == 3


def test_a_bias_beyond_the_vocabulary_is_refused_and_one_beyond_the_head_is_not(drafter: LmDrafter) -> None:
    wild, absent = (replace(SamplingParams(), logit_bias=((v, 5.0),)) for v in (VOCAB, 1))
    refused, draft = draft_all(drafter, [job(PROMPT, 3, wild), job(PROMPT, 3, absent)])
    assert refused.reason == "INVALID_ARGUMENT" and len(tokens(draft)) == 3


@pytest.mark.parametrize("rule", [token_rule, block_rule])
@pytest.mark.parametrize("k", [1, 2])
def test_the_output_law_is_the_targets_whatever_ids_are_left(
    tmp_path: Path, metrics: ReplicaMetrics, rule: Any, k: int
) -> None:
    """Exact, by enumeration: the target can emit ids that the drafter has not, and keeps its law."""
    folder = make_tiny_model(tmp_path / "m", vocab_size=5, hidden=32, max_context=64)
    drafter = cut_drafter(folder, ids_file(tmp_path, (1, 4)), metrics)
    target = random_toy(3, vocab=5).target

    def law(context: Tokens) -> DraftLaw:
        drawn = draft_one(drafter, job([2, *context], 1, SamplingParams(), kind=DraftKind.SAMPLED, support=8))
        return drawn.laws[0]

    toy = Toy("cut head", target, law)
    assert set(law(()).ids.tolist()) == {1, 4}
    got = Cycling(rule, VerifyForm.PQ, DraftKind.SAMPLED, CHAIN[k]).one_cycle(toy, (), k + 1)
    assert_lawful(got, sequence_law(toy, (), k + 1))


def test_growth_and_rollback_draft_as_a_fresh_drafter_does(
    model_folder: Path, metrics: ReplicaMetrics, tmp_path: Path
) -> None:
    file, params = ids_file(tmp_path, KEPT), SamplingParams(temperature=0.8, repetition_penalty=1.3)
    drafter, session, rng = cut_drafter(model_folder, file, metrics), DraftSession(), np.random.default_rng(5)
    context = random_ids(1, 12)
    for step in range(12):
        draft = draft_one(drafter, job(context, 5, params, session, seed=step))
        fresh = draft_one(cut_drafter(model_folder, file, metrics), job(context, 5, params, seed=step))
        assert tokens(draft) == tokens(fresh)
        context = [*context[: len(context) - int(rng.integers(2))], *tokens(draft)[: rng.integers(6)], step]


def test_the_target_itself_in_int8_drafts_nearly_as_it_does_in_float32(
    model_folder: Path, metrics: ReplicaMetrics
) -> None:
    config = DraftConfig(drafters=("self:int8",), target_model=str(model_folder), kv_tokens=4096, threads=1)
    rounded, exact = self_draft.build(config, metrics, "int8"), self_draft.build(config, metrics, "float32")
    assert (rounded.model.dtype, exact.model.dtype) == ("int8", "float32")
    assert rounded.model.fingerprint != exact.model.fingerprint
    pairs = [
        (draft_one(rounded, job(context, 4)), draft_one(exact, job(context, 4)))
        for context in (random_ids(seed, 12) for seed in range(20))
    ]
    assert all(a.drafter == b.drafter == "self" for a, b in pairs)
    assert sum(tokens(a)[0] == tokens(b)[0] for a, b in pairs) >= 15


def test_a_draft_folder_is_served_with_what_it_borrows_and_with_its_own_head_ids(
    tmp_path: Path, metrics: ReplicaMetrics
) -> None:
    target = make_tiny_model(tmp_path / "target", vocab_size=97)
    folder, _ = draft_folder(tmp_path / "draft", target, target, head_ids="first:8")
    config = DraftConfig(
        drafters=(f"lm:{folder}", "ngram"), target_model=str(target), dtype="float32", kv_tokens=4096, threads=1
    )
    config.validate()
    drafter = load_drafters(config, metrics)["lm"]
    assert drafter.model.name == "draft" and drafter.model.vocab_size == 97
    drafts = [draft_one(drafter, job(random_ids(seed, 9, 97), 4)) for seed in range(5)]
    assert {token for draft in drafts for token in tokens(draft)} <= set(range(8))
    with pytest.raises(ConfigError, match="target_model = None"):
        load_drafters(replace(config, target_model=None), metrics)
