"""A drafter of another tokenizer: it reads translated contexts and drafts the tokens that both have."""

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

from draft_service.__main__ import check_one_vocabulary, load_drafters
from draft_service.config import DraftConfig
from draft_service.drafters import lm
from draft_service.drafters.lm import LmDrafter
from draft_service.session import DraftSession
from specdec.core.acceptance import token_rule
from specdec.core.draft import DraftKind, DraftLaw
from specdec.core.errors import ConfigError
from specdec.core.laws import check_draft, check_draws
from specdec.core.sampling import SamplingParams
from specdec.core.tokenizer_hash import tokenizer_hash
from specdec.core.verification import VerifyForm
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.translation import Translation
from tests.core.cycles import Cycling
from tests.core.integration import assert_lawful
from tests.core.toys import CHAIN, Tokens, Toy
from tests.draft_service.jobs import GREEDY, draft_one, ids, job, tokens
from tests.reference import reference_law, reference_y
from tests.tiny_models import make_tiny_model
from tests.toy_tokenizers import EOS_ID, save_folder, toy_tokenizer, toy_vocab_size
from tests.trained_tokenizers import byte_level, save_byte_level

V = toy_vocab_size("byte_level")
SPECIALS = ("<|endoftext|>", "<|im_end|>")
TEXT = "the hello 안녕 world, the"
PENALISED = SamplingParams(
    repetition_penalty=3.0, presence_penalty=1.5, frequency_penalty=1.0, logit_bias=((EOS_ID, -3.0), (40, 2.0))
)
LawOf = Callable[[list[int], SamplingParams], NDArray[np.float64]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("target"), vocab_size=V, hidden=32, layers=1, eos_id=EOS_ID)
    return save_folder(folder, "byte_level")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model whose tokenizer has other ids and other merges."""
    folder = tmp_path_factory.mktemp("stranger")
    make_tiny_model(folder, vocab_size=byte_level(SPECIALS).get_vocab_size(), hidden=32, max_context=160, std=0.1)
    return save_byte_level(folder, SPECIALS)


@pytest.fixture
def new_drafter(target: Path, stranger: Path, metrics: ReplicaMetrics) -> Callable[..., LmDrafter]:
    def make(**settings: Any) -> LmDrafter:
        config = DraftConfig(
            drafters=("lm",), model=str(stranger), target_model=str(target), tli=True, dtype="float32", threads=1,
            kv_tokens=4096, **settings,
        )  # fmt: skip
        config.validate()
        return lm.build(config, metrics, None)

    return make


@pytest.fixture(scope="module")
def translation() -> Translation:
    return Translation(toy_tokenizer("byte_level"), byte_level(SPECIALS), V, byte_level(SPECIALS).get_vocab_size())


@pytest.fixture(scope="module")
def law_of(stranger: Path, translation: Translation) -> LawOf:
    """The obvious version: translate all, run the stock model, keep what is shared, form the law in target ids."""
    model = AutoModelForCausalLM.from_pretrained(stranger, dtype=torch.float32)

    def law(context: list[int], params: SamplingParams) -> NDArray[np.float64]:
        own = [i for token in context for i in translation.token(token)]
        with torch.inference_mode():
            logits = model(torch.tensor([own])).logits[0, -1].numpy()
        masked = np.full(V, -np.inf, dtype=np.float32)
        masked[translation.shared.target_ids] = logits[translation.shared.own_ids]
        return reference_law(masked, context, 4, params)

    return law


def prompt() -> list[int]:
    return [int(i) for i in toy_tokenizer("byte_level").encode(TEXT, add_special_tokens=False).ids]


def test_the_replica_drafts_in_the_targets_vocabulary(new_drafter: Callable[..., LmDrafter]) -> None:
    model = new_drafter().model
    assert (model.vocab_size, model.tokenizer_hash) == (V, tokenizer_hash(toy_tokenizer("byte_level").to_str()))
    assert model.eos_ids == (EOS_ID,)


@pytest.mark.parametrize("params", [SamplingParams(), PENALISED, SamplingParams(top_k=7, temperature=0.6)])
def test_the_law_is_that_of_the_translated_context_on_shared_tokens(
    new_drafter: Callable[..., LmDrafter], law_of: LawOf, params: SamplingParams
) -> None:
    drafter = new_drafter()
    for seed in range(3):
        asked = job(prompt(), 4, params, kind=DraftKind.SAMPLED, support=255, seed=seed, turn_start=4)
        draft, context = draft_one(drafter, asked), prompt()
        check_draft(draft, V)
        check_draws(draft, seed, len(prompt()))
        for token, law in zip(tokens(draft), draft.laws, strict=True):
            expected = law_of(context, params)
            reported = np.zeros(V)
            reported[law.ids] = law.q
            assert (expected[reported == 0] <= np.sort(expected)[-255]).all()
            cut = np.where(reported > 0, expected, 0.0)
            np.testing.assert_allclose(reported, cut / cut.sum(), atol=2e-3)
            context.append(token)


def test_chosen_drafts_use_the_targets_noise_at_the_targets_positions(
    new_drafter: Callable[..., LmDrafter], law_of: LawOf
) -> None:
    """Positions are counted in the target's tokens, however many the drafter makes of them."""
    drafter = new_drafter()
    for seed, params in ((1, SamplingParams(top_k=50)), (2, GREEDY), (3, replace(PENALISED, top_k=50))):
        context = prompt()
        for token in tokens(draft_one(drafter, job(context, 5, params, seed=seed, turn_start=4))):
            assert token == reference_y(law_of(context, params), seed, len(context))
            context.append(token)


def test_growth_and_rollback_draft_as_a_fresh_drafter_does_and_compute_only_what_is_new(
    new_drafter: Callable[..., LmDrafter], translation: Translation
) -> None:
    drafter, session, rng = new_drafter(), DraftSession(), np.random.default_rng(5)
    context = prompt()
    for step in range(12):
        draft = draft_one(drafter, job(context, 5, SamplingParams(), session, seed=step))
        assert tokens(draft) == tokens(draft_one(new_drafter(), job(context, 5, SamplingParams(), seed=step)))
        session.computed_tokens = 0
        draft_one(drafter, job([*context, *tokens(draft), 300 - step], 1, SamplingParams(), session, seed=step))
        assert session.computed_tokens == 1 + len(translation.token(300 - step))
        context = [*context[: len(context) - int(rng.integers(3))], *tokens(draft)[: rng.integers(6)], 4 + step]


def test_a_context_that_says_nothing_to_the_drafter_has_no_draft(
    new_drafter: Callable[..., LmDrafter], translation: Translation
) -> None:
    drafter, session = new_drafter(), DraftSession()
    assert translation.token(V + 5) == ()
    assert tokens(draft_one(drafter, job([V + 5], 3, session=session))) == []
    assert len(tokens(draft_one(drafter, job([V + 5, 40], 3, session=session)))) == 3
    drafter.close(session)
    assert not drafter._translated and drafter.kv_free == drafter.kv_total


def test_the_output_law_is_the_targets(new_drafter: Callable[..., LmDrafter], translation: Translation) -> None:
    """Exact, through the p/q form; the target's mass on tokens that the drafter does not have is all there."""
    drafter, rng = new_drafter(), np.random.default_rng(8)
    p = rng.dirichlet(np.full(V, 0.2)).astype(np.float32)
    lonely = np.setdiff1d(np.arange(V), translation.shared.target_ids)
    p[lonely[:3]] += 0.1

    def law(context: Tokens) -> DraftLaw:
        asked = job([*prompt(), *context], 1, SamplingParams(), kind=DraftKind.SAMPLED, support=6)
        return draft_one(drafter, asked).laws[0]

    toy = Toy("translated", lambda context: p / p.sum(), law)
    got = Cycling(token_rule, VerifyForm.PQ, DraftKind.SAMPLED, CHAIN[1]).one_cycle(toy, (), 1)
    assert_lawful(got, {(v,): float(mass) for v, mass in enumerate(toy.p(())) if mass > 0})
    assert sum(got[(int(v),)] for v in lonely if (int(v),) in got) > 0.2


def test_head_ids_cut_the_shared_tokens_further(
    new_drafter: Callable[..., LmDrafter], translation: Translation
) -> None:
    drafter = new_drafter(head_ids="first:60")
    drafted = {
        t for seed in range(9) for t in tokens(draft_one(drafter, job(prompt(), 6, SamplingParams(), seed=seed)))
    }
    assert drafted and drafted <= set(range(60)) & set(translation.shared.target_ids.tolist())


@pytest.mark.scenario("B32")
def test_without_tli_another_tokenizer_is_announced_as_what_it_is(
    stranger: Path, target: Path, metrics: ReplicaMetrics
) -> None:
    """And the coordinator leaves the replica out, by the hash."""
    config = DraftConfig(drafters=("lm",), model=str(stranger), target_model=str(target), kv_tokens=4096, threads=1)
    model = lm.build(config, metrics, None).model
    assert model.tokenizer_hash == tokenizer_hash(byte_level(SPECIALS).to_str())
    assert model.vocab_size == byte_level(SPECIALS).get_vocab_size()


@pytest.mark.scenario("B32")
def test_one_replica_serves_one_vocabulary(stranger: Path, target: Path, metrics: ReplicaMetrics) -> None:
    settings: dict[str, Any] = {"model": str(stranger), "target_model": str(target), "kv_tokens": 4096, "threads": 1}
    both = DraftConfig(drafters=("lm", "self", "ngram"), **settings)
    with pytest.raises(ConfigError, match=r"drafters = 'lm,self': lm drafts .* ids of tokenizer .* or use --tli"):
        load_drafters(both, metrics)
    translated = load_drafters(replace(both, tli=True), metrics)
    assert {d.model.vocab_size for name, d in translated.items() if name != "ngram"} == {V}
    check_one_vocabulary({name: drafter.model for name, drafter in translated.items()})


def test_the_same_session_may_change_its_context_wholly(new_drafter: Callable[..., LmDrafter]) -> None:
    drafter, session = new_drafter(), DraftSession()
    for context in (prompt(), [40, 41], prompt()[:5], [60]):
        draft = draft_one(drafter, job(context, 3, session=session))
        assert tokens(draft) == tokens(draft_one(new_drafter(), job(context, 3)))
    assert ids([60]).tolist() == drafter._translated[session]._context.tolist()
