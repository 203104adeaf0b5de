from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.core.errors import ConfigError
from specdec.core.tokenizer_hash import tokenizer_hash
from specdec.lm.loading import load_model
from specdec.lm.runner import Runner, Segment
from tests.tiny_models import FAMILIES, make_tiny_model
from tests.toy_tokenizers import toy_tokenizer, toy_vocab_size


def load(folder: Path, **options: Any) -> Any:
    return load_model(str(folder), **{"dtype": "float32", "device": "cpu", **options})


def test_vocabulary_is_the_tokenizers_not_the_padded_width(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "padded", vocab_size=4000)
    text = toy_tokenizer("byte_level").to_str()
    (folder / "tokenizer.json").write_text(text)
    loaded = load(folder)
    assert loaded.vocab_size == toy_vocab_size("byte_level") < 4000
    assert loaded.tokenizer_hash == tokenizer_hash(text)


def test_a_folder_without_a_tokenizer_has_the_models_width(tmp_path: Path) -> None:
    loaded = load(make_tiny_model(tmp_path / "bare", max_context=77, eos_id=5))
    assert (loaded.vocab_size, loaded.max_context, loaded.eos_ids, loaded.name) == (97, 77, (5,), "bare")


def test_fingerprint_tells_weights_dtype_and_depth_apart_and_nothing_else(tmp_path: Path) -> None:
    same, again = (make_tiny_model(tmp_path / name, layers=3, seed=1) for name in ("same", "again"))
    other = make_tiny_model(tmp_path / "other", layers=3, seed=2)
    prints = [
        load(same).fingerprint,
        load(other).fingerprint,
        load(same, dtype="bfloat16").fingerprint,
        load(same, num_layers=2).fingerprint,
    ]
    assert len(set(prints)) == 4
    assert load(again).fingerprint == prints[0]


@pytest.mark.parametrize("tied", [False, True])
def test_base_fingerprint_is_of_the_folder_whatever_it_is_served_in(tmp_path: Path, tied: bool) -> None:
    folder, other = (make_tiny_model(tmp_path / str(i), seed=i, tie_word_embeddings=tied) for i in range(2))
    prints = {load(folder, dtype=dtype).base_fingerprint for dtype in ("float32", "bfloat16", "int8")}
    assert len(prints) == 1
    assert load(folder, network="stock").base_fingerprint in prints
    assert load(other).base_fingerprint not in prints
    assert load(folder, num_layers=1).base_fingerprint not in prints


def test_the_shape_is_that_of_what_is_served(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "deep", layers=3, hidden=48)
    shapes = [(loaded.num_layers, loaded.hidden_size) for loaded in (load(folder), load(folder, num_layers=2))]
    assert shapes == [(3, 48), (2, 48)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_truncated_copy_is_the_first_layers_with_the_models_own_norm_and_head(tmp_path: Path, family: str) -> None:
    folder = make_tiny_model(tmp_path / family, family, layers=3)
    runner = Runner(load(folder, num_layers=2), 100)
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    stock.model.layers = stock.model.layers[:2]
    stock.config.num_hidden_layers = 2
    ids = np.arange(10, dtype=np.uint32)
    [logits] = runner.forward([Segment(runner.new_sequence(), ids, wanted=10)])
    with torch.inference_mode():
        expected = stock(torch.arange(10)[None], use_cache=False).logits[0]
    assert float((logits - expected).abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("options", "field"),
    [({"dtype": "float16"}, "dtype"), ({"num_layers": 0}, "num_layers"), ({"num_layers": 4}, "num_layers")],
)
def test_a_setting_that_cannot_work_is_named(tiny_folders: dict[str, Path], options: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tiny_folders["llama"], **options)
    assert caught.value.field == field


def test_a_path_that_is_no_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert caught.value.field == "model"
