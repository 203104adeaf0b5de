from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from draft_service.training.evaluation import evaluate
from draft_service.training.medusa import MedusaDraft
from draft_service.training.rows import Rows
from draft_service.training.setting import Setting
from tests.draft_service.training.conftest import CPU

HEADS = 2


def slow_alphas(setting: Setting, draft: MedusaDraft, ids: np.ndarray[Any, Any] | None) -> list[float]:
    """By the target of `transformers`, document after document, over the whole vocabulary, without the
    padding of its embedding."""
    model: Any = AutoModelForCausalLM.from_pretrained(setting.target.folder)
    found: list[list[float]] = [[] for _ in range(HEADS)]
    size = setting.target.loaded.vocab_size
    for document in (setting.documents[i] for i in setting.train):
        with torch.no_grad():
            out = model(torch.from_numpy(document.ids.astype(np.int64))[None], output_hidden_states=True)
            states = draft.draft(out.hidden_states[-1][0])  # after the final norm
            logits = states @ model.lm_head.weight[:size].T
        p = out.logits[0, :, :size].softmax(-1)
        for i in range(HEADS):
            hidden = torch.full_like(logits[i], -torch.inf)
            kept = range(logits.shape[-1]) if ids is None else ids.astype(np.int64)
            hidden[:, list(kept)] = logits[i][:, list(kept)]
            q = hidden.softmax(-1)
            for t in range(len(document.ids) - i - 2):
                if document.learned[t + i + 2]:
                    found[i].append(float(torch.minimum(p[t + i + 1], q[t]).sum()))
    return [float(np.mean(each)) for each in found]


@pytest.mark.parametrize("cut", [False, True])
def test_alpha_is_that_of_the_whole_law(cut: bool, setting: Setting, rows: Callable[..., Rows]) -> None:
    ids = np.arange(3, 60, dtype=np.uint32) if cut else None
    head = setting.parts.rows_of_head(ids)
    torch.manual_seed(0)
    draft = MedusaDraft(setting.parts, HEADS, head, half_precision=False)
    for weight in draft.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    evaluation = evaluate(draft, head, rows(2000, HEADS), 2000, HEADS, CPU)
    assert evaluation.alpha == pytest.approx(slow_alphas(setting, draft, ids), abs=0.004)


def test_accuracies_fall_with_the_rank_of_a_good_draft(setting: Setting, rows: Callable[..., Rows]) -> None:
    draft = MedusaDraft(setting.parts, HEADS, setting.head, half_precision=False)
    evaluation = evaluate(draft, setting.head, rows(24, HEADS), 240, HEADS, CPU)
    assert len(evaluation.accuracies) == HEADS
    for ranks in evaluation.accuracies:
        assert len(ranks) == 10
        assert 0 < sum(ranks) <= 1
