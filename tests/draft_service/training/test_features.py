from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from draft_service.training.features import FeatureCache, fitting
from draft_service.training.setting import Setting
from specdec.lm.runner import Runner
from tests.draft_service.training.conftest import LAYERS


@pytest.fixture
def runner(setting: Setting) -> Runner:
    return Runner(setting.target.loaded, 4096)


def test_states_and_logsumexp_give_the_target_s_law(setting: Setting, runner: Runner, tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "features", (1, LAYERS), 32)
    list(cache.extend(runner, setting.parts, setting.documents))
    features = cache.open(setting.documents)
    model: Any = AutoModelForCausalLM.from_pretrained(setting.target.folder)
    for i in (0, 7, len(setting.documents) - 1):
        span = slice(features.starts[i], features.starts[i + 1])
        ids = torch.from_numpy(setting.documents[i].ids.astype(np.int64))[None]
        with torch.no_grad():
            expected = model(ids).logits[0, :, : len(setting.head)].log_softmax(-1)
        taps = torch.from_numpy(features.taps[span].copy()).view(torch.bfloat16)
        logits = setting.parts.normed(taps[:, -1]) @ setting.head.T
        log_p = logits - torch.from_numpy(features.logsumexp[span].copy())[:, None]
        torch.testing.assert_close(log_p.exp(), expected.exp(), atol=0.02, rtol=0)


def test_what_has_grown_costs_only_what_is_new(setting: Setting, runner: Runner, tmp_path: Path) -> None:
    some, all_ = setting.documents[:30], setting.documents
    whole = FeatureCache(tmp_path / "at-once", (LAYERS,), 32)
    list(whole.extend(runner, setting.parts, all_))
    cache = FeatureCache(tmp_path / "grown", (LAYERS,), 32)
    list(cache.extend(runner, setting.parts, some))
    held = sum(len(document.ids) for document in some)
    assert next(iter(cache.extend(runner, setting.parts, all_))) == held
    list(cache.extend(runner, setting.parts, all_))
    np.testing.assert_allclose(cache.open(all_).logsumexp, whole.open(all_).logsumexp, atol=1e-3)
    # Fewer documents are there too.
    assert len(cache.open(some[:10]).logsumexp) == sum(len(document.ids) for document in some[:10])


def test_other_data_are_computed_anew_from_where_they_differ(setting: Setting, runner: Runner, tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "features", (LAYERS,), 32)
    list(cache.extend(runner, setting.parts, setting.documents))
    changed = list(setting.documents)
    changed[5] = replace(changed[5], ids=changed[5].ids + 1)
    first = next(iter(cache.extend(runner, setting.parts, changed)))
    assert first == sum(len(document.ids) for document in changed[:5])


def test_the_cache_takes_no_more_documents_than_fit(setting: Setting) -> None:
    lengths = [len(document.ids) for document in setting.documents]
    assert len(fitting(setting.documents, 10, 10 * sum(lengths))) == len(lengths)
    assert len(fitting(setting.documents, 10, 10 * sum(lengths[:4]) + 9)) == 4
    assert not fitting(setting.documents, 10, 10)
