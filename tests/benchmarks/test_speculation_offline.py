"""What target and draft agree on, on tiny models whose laws `transformers` gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.chains import Model, overlaps
from benchmarks.speculation_offline import ratio_interval, rows_of_alphas, rows_of_block, rows_of_steps
from specdec.core.expected import chain_survival
from specdec.lm.loading import load_model
from tests.tiny_models import make_tiny_model

VOCAB = 40
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return tuple(  # type: ignore[return-value]
        make_tiny_model(folder / name, vocab_size=VOCAB, hidden=32, seed=seed, std=0.15)
        for seed, name in enumerate(("target", "draft"))
    )


@pytest.fixture(scope="module")
def models(folders: tuple[Path, Path]) -> tuple[Model, Model]:
    target, draft = (Model(load_model(str(f), dtype="float32", device="cpu"), 512) for f in folders)
    return target, draft


def softmax(folder: Path, tokens: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return torch.softmax(model(torch.tensor([tokens])).logits[0].double(), -1)


def test_laws_are_those_of_transformers_in_whatever_order_they_are_asked(
    folders: tuple[Path, Path], models: tuple[Model, Model]
) -> None:
    tokens = [i * 7 % VOCAB for i in range(70)]
    expected = softmax(folders[0], tokens)
    for start in (0, 50, 20, 69):
        found = torch.stack(list(models[0].laws(tokens, start)))
        assert torch.allclose(found, expected[start:], atol=1e-5)
    assert models[0].law(tokens[:9]) == pytest.approx(softmax(folders[0], tokens[:9])[-1].numpy(), abs=1e-5)


def test_alpha_is_one_minus_total_variation_and_cutting_ids_only_takes(
    folders: tuple[Path, Path], models: tuple[Model, Model]
) -> None:
    target, draft = models
    answer = target.sample(PROMPT, 12, np.random.default_rng(0))
    within = torch.arange(VOCAB) < VOCAB // 2
    found = overlaps(target, draft, PROMPT, answer, VOCAB, within)
    p, q = (softmax(folder, [*PROMPT, *answer])[len(PROMPT) - 1 : -1] for folder in folders)
    assert found.whole == pytest.approx((1 - (p - q).abs().sum(-1) / 2).tolist(), abs=1e-5)
    assert found.cut == pytest.approx(found.whole, abs=1e-3), "a cut to all ids cuts nothing"
    inside = torch.where(within, q, 0.0)
    expected = torch.minimum(p, inside / inside.sum(-1, keepdim=True)).sum(-1)
    assert found.restricted == pytest.approx(expected.tolist(), abs=1e-3)
    assert overlaps(target, target, PROMPT, answer, VOCAB, None).whole == pytest.approx([1.0] * 12)


def test_block_is_never_shorter_on_recorded_chains(models: tuple[Model, Model]) -> None:
    target, draft = models
    rng = np.random.default_rng(1)
    token, block = [], []
    for _ in range(40):
        context = [*PROMPT, *target.sample(PROMPT, 3, rng)]
        chain = draft.chain(context, 4, 8, rng)
        assert len(chain.laws) == 4 and all(len(law.ids) <= 8 for law in chain.laws)
        accepted = chain_survival(chain, target.judge(context, chain)).accepted
        token.append(1 + accepted[0])
        block.append(1 + accepted[1])
    length, low, high, shorter = rows_of_block(np.array(token), np.array(block), rng)
    assert shorter.value == 0 and low.value >= 1 - 1e-9
    assert length.ratio is not None and low.value <= length.ratio <= high.value


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        base = rng.exponential(1.0, 80)
        low, high = ratio_interval(base * rng.normal(1.1, 0.3, 80), base, rng)
        covered += low <= 1.1 <= high
    assert 175 <= covered <= 199


def test_rows_compare_with_the_whole_law_and_the_full_head() -> None:
    from benchmarks.chains import Overlap

    found = {"one": [Overlap((0.9, 0.7), (0.9, 0.6), (0.8, 0.6))], "two": [Overlap((0.5,), (0.5,), (0.5,))]}
    rows = {(row.measure, row.subject): row for row in rows_of_alphas(found, "int8 draft", "first:8")}
    mean = rows["exact alpha, T = 1, mean over prompts", "int8 draft, whole law"]
    assert mean.value == pytest.approx((0.8 + 0.5) / 2), "over prompts, not positions"
    cut = rows["exact alpha, T = 1, one", "int8 draft, 32 likeliest ids of first:8"]
    assert (cut.value, cut.baseline_value) == pytest.approx((0.7, 0.8))
    steps = {(r.measure, r.subject): r for r in rows_of_steps({"target": 100.0, "full": 30.0, "cut": 15.0})}
    assert steps["draft step", "cut"].ratio == pytest.approx(0.5)
    assert steps["c, draft step over target step", "cut"].ratio == pytest.approx(0.15)
