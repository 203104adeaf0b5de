from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from draft_service.training.eagle import EagleDraft, visible_in_pass
from draft_service.training.losses import Mix
from draft_service.training.rows import Batch, Rows
from draft_service.training.setting import Setting
from tests.draft_service.training.conftest import LAYERS

PASSES = 3


@pytest.fixture
def draft(setting: Setting) -> EagleDraft:
    torch.manual_seed(2)
    return EagleDraft(
        setting.parts, (LAYERS,), setting.head, unroll=PASSES - 1, feature_weight=0.1, half_precision=False
    )  # fmt: skip


class Grown:
    """Keys and values of one layer, row after row."""

    def __init__(self) -> None:
        self.key: torch.Tensor | None = None
        self.value: torch.Tensor | None = None

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.key = key if self.key is None else torch.cat([self.key, key], 2)
        self.value = value if self.value is None else torch.cat([self.value, value], 2)
        return self.key, self.value


def drafted(draft: EagleDraft, setting: Setting, batch: Batch, row: int, first: int, known: int) -> list[torch.Tensor]:
    """The states of PASSES draft steps as serving takes them: the target's features from position `first` up to
    `known`, then its own outputs one after the other. The drafted tokens are those of the row."""
    embeddings = nn.functional.embedding(batch.ids[row : row + 1], setting.parts.embedding)
    features = batch.taps[row : row + 1, :, -1].float()
    cache, states = Grown(), []
    g = features[:, first : known + 1]
    for step in range(PASSES):
        start = first if step == 0 else known + step
        positions = torch.arange(start, known + step + 1)[None]
        seen = torch.ones(len(positions[0]), known + step + 1 - first).tril(start - first).bool()[None, None]
        g = draft.draft(g, embeddings[:, start + 1 : known + step + 2], positions, seen, cache)[:, -1:]
        states.append(g[0, 0])
    return states


def test_a_pass_over_all_positions_sees_what_drafting_sees(
    draft: EagleDraft, setting: Setting, rows: Callable[..., Rows]
) -> None:
    batch = rows(24, 1).batch([0, 3, 5])
    with torch.no_grad():
        passes = draft._passes(batch, PASSES)
        checked = 0
        for row, documents in enumerate(batch.documents[:, :24].tolist()):
            for known in range(24 - PASSES):
                if documents[known] != documents[known + PASSES]:
                    continue
                first = documents.index(documents[known])
                for step, state in enumerate(drafted(draft, setting, batch, row, first, known)):
                    torch.testing.assert_close(passes[step][row, known + step], state, atol=2e-4, rtol=1e-3)
                checked += 1
    assert checked > 20


def test_passes_that_saw_the_true_features_would_be_noticed(draft: EagleDraft, rows: Callable[..., Rows]) -> None:
    batch = rows(24, 1).batch([0])
    with torch.no_grad():
        first, second, _ = draft._passes(batch, PASSES)
    assert not torch.allclose(first[0, 4:20], second[0, 4:20], atol=1e-2)


def test_a_later_pass_sees_the_target_s_features_only_so_far() -> None:
    visible = torch.ones(5, 5).tril().bool()[None, None]
    seen = visible_in_pass(visible, 2)[0, 0]
    assert seen.shape == (5, 15)
    assert seen[4].nonzero()[:, 0].tolist() == [0, 1, 2, 5 + 3, 10 + 4]
    assert seen[1].nonzero()[:, 0].tolist() == [5 + 0, 10 + 1]


def test_the_loss_has_a_gradient_for_every_weight(draft: EagleDraft, rows: Callable[..., Rows]) -> None:
    draft(rows(24, 1).batch([0, 1]), Mix(kl=1.0)).backward()
    missing = [name for name, weight in draft.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert missing == []
