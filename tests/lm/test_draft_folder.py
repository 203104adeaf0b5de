"""Draft folders say what they are, and hold what was put in, as far as its precision goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.core.errors import ConfigError
from specdec.lm.draft_folder import is_draft_folder, read_draft_folder, write_draft_folder

SETTINGS: dict[str, Any] = {
    "kind": "medusa",
    "target": "tiny",
    "target_base_fingerprint": "f",
    "tokenizer_hash": "h",
    "hidden_size": 32,
    "vocab_size": 97,
    "head_ids": None,
    "num_heads": 2,
}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "heads.0.weight": torch.randn(32, 32, generator=generator),
        "heads.0.bias": torch.randn(32, generator=generator),
    }


@pytest.mark.parametrize("int8", [False, True])
def test_what_is_written_is_read_again_within_its_precision(tmp_path: Path, int8: bool) -> None:
    write_draft_folder(tmp_path / "d", SETTINGS, tensors(), "# card\n", int8)
    folder = read_draft_folder(tmp_path / "d")
    assert folder.kind == "medusa" and dict(folder.settings) == SETTINGS
    assert folder.tensors.keys() == tensors().keys()
    for name, exact in tensors().items():
        read = folder.tensors[name]
        assert read.dtype == torch.float32
        steps = exact.abs().amax(-1, keepdim=True) / 127 if int8 and exact.dim() == 2 else exact.abs() / 256
        assert ((read - exact).abs() <= 0.51 * steps + exact.abs() / 256).all(), name
    assert (tmp_path / "d" / "README.md").read_text() == "# card\n"


def test_int8_rows_take_a_quarter_and_are_written_the_same_again(tmp_path: Path) -> None:
    """What was dequantised gives the same rows and scales when it is written once more."""
    write_draft_folder(tmp_path / "a", SETTINGS, tensors(), "", int8=True)
    write_draft_folder(tmp_path / "b", SETTINGS, read_draft_folder(tmp_path / "a").tensors, "", int8=True)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert first["heads.0.weight"].dtype == torch.int8 and first["heads.0.weight.scale"].dtype == torch.float32
    assert first["heads.0.bias"].dtype == torch.bfloat16
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_file_of_ids_lies_in_the_folder_and_a_count_stands_for_itself(tmp_path: Path) -> None:
    for spec, expected in ((None, None), ("first:9", "first:9"), ("ids.npy", str(tmp_path / "ids.npy"))):
        write_draft_folder(tmp_path, {**SETTINGS, "head_ids": spec}, tensors(), "", int8=False)
        assert read_draft_folder(tmp_path).head_ids == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "lookahead"}, "kind = 'lookahead', not one of"),
        ({"hidden_size": "32"}, "hidden_size = '32' is of the wrong type"),
        ({"vocab_size": True}, "vocab_size = True is of the wrong type"),
        ({"kind": "lm"}, "a draft LM needs `config`"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        write_draft_folder(tmp_path, {**SETTINGS, **change}, tensors(), "", int8=False)
    assert not is_draft_folder(tmp_path)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no draft folder: draft\.json cannot be read"):
        read_draft_folder(tmp_path)
    write_draft_folder(tmp_path, SETTINGS, tensors(), "", int8=True)
    settings, weights = tmp_path / "draft.json", tmp_path / "model.safetensors"
    whole = load_file(weights)
    save_file({name: tensor for name, tensor in whole.items() if not name.endswith(".scale")}, weights)
    with pytest.raises(ConfigError, match=r"heads\.0\.weight is int8 and has no heads\.0\.weight\.scale"):
        read_draft_folder(tmp_path)
    weights.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        read_draft_folder(tmp_path)
    settings.write_text(json.dumps({name: value for name, value in SETTINGS.items() if name != "tokenizer_hash"}))
    with pytest.raises(ConfigError, match="has no tokenizer_hash"):
        read_draft_folder(tmp_path)
