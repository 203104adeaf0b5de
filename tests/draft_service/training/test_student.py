from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from draft_service.training.evaluation import evaluate
from draft_service.training.rows import Rows
from draft_service.training.setting import Setting
from draft_service.training.student import StudentDraft, spread_layers
from tests.draft_service.training.conftest import CPU, LAYERS


def test_a_student_of_all_layers_is_the_target(setting: Setting, rows: Callable[..., Rows]) -> None:
    """What sees as far back as the target and has all its weights is accepted always; one that lacks a layer is not."""
    whole = rows(2000, 1)
    draft = StudentDraft(setting.parts, range(LAYERS), setting.head, half_precision=False)
    assert evaluate(draft, setting.head, whole, 2000, 1, CPU).alpha[0] == pytest.approx(1, abs=0.01)
    cut = StudentDraft(setting.parts, (0, LAYERS - 1), setting.head, half_precision=False)
    assert evaluate(cut, setting.head, whole, 2000, 1, CPU).alpha[0] < 0.9


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(30, 3) == (0, 14, 29)
    assert spread_layers(30, 2) == (0, 29)
    assert spread_layers(30, 1) == (0,)
    assert spread_layers(4, 4) == (0, 1, 2, 3)


def test_nothing_of_the_target_is_among_the_tensors(setting: Setting) -> None:
    draft = StudentDraft(setting.parts, (0, 2), setting.head, half_precision=False)
    names = set(draft.tensors())
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"0", "1"}
    assert not any("embed" in name or "head" in name for name in names)
    assert all(isinstance(tensor, torch.Tensor) for tensor in draft.tensors().values())
