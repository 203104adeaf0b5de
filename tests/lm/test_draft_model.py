"""Draft LMs: what a draft folder borrows from its target, and heads that are cut to fewer ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.core.errors import ConfigError
from specdec.lm.draft_folder import write_draft_folder
from specdec.lm.draft_model import DraftLM, cut_head, load_draft_model
from specdec.lm.loading import load_model, read_vocabulary
from specdec.lm.networks import NETWORKS
from specdec.lm.runner import Runner, Segment
from specdec.lm.stored_tensors import EMBEDDING, FINAL_NORM, HEAD
from tests.lm.served import V, random_ids
from tests.tiny_models import make_tiny_model

KEPT = (1, 5, 6, 30, 31, 96)


def load(path: Path, target: Path | None = None, **options: Any) -> DraftLM:
    options = {"dtype": "float32", "device": "cpu", **options}
    return load_draft_model(str(path), target=None if target is None else str(target), **options)


def logits(loaded: Any, n: int = 9) -> torch.Tensor:
    """Of the last token of n."""
    runner = Runner(loaded, 64)
    [rows] = runner.forward([Segment(runner.new_sequence(), random_ids(n), wanted=1)])
    return rows[0]


@pytest.fixture
def some_ids(tmp_path: Path) -> str:
    (tmp_path / "ids.json").write_text(json.dumps(KEPT))
    return str(tmp_path / "ids.json")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("tied", [False, True])
def test_a_cut_head_gives_the_whole_ones_logits_of_its_ids(
    tmp_path: Path, some_ids: str, network: str, dtype: str, tied: bool
) -> None:
    """And reads every token: input embeddings stay whole."""
    folder = make_tiny_model(tmp_path / "m", vocab_size=V, tie_word_embeddings=tied)
    whole = load(folder, dtype=dtype, network=network)
    cut = load(folder, dtype=dtype, network=network, head_ids=some_ids)
    assert whole.ids is None and cut.ids is not None and cut.ids.target_ids.tolist() == list(KEPT)
    expected = logits(whole.loaded)[list(KEPT)]
    assert logits(cut.loaded).shape == (len(KEPT),)
    torch.testing.assert_close(logits(cut.loaded), expected, rtol=0, atol=2e-5 if dtype == "float32" else 0.05)
    assert cut.loaded.vocab_size == whole.loaded.vocab_size == V
    assert cut.loaded.fingerprint != whole.loaded.fingerprint


def test_a_head_with_a_bias_keeps_its_part(tmp_path: Path, some_ids: str) -> None:
    """`transformers` has few such models; those go by the stock network."""
    folder = make_tiny_model(tmp_path / "m", "llama", vocab_size=V)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.lm_head.bias = torch.nn.Parameter(torch.arange(float(V)))
    cut_head(model, np.array(KEPT, dtype=np.uint32))
    assert model.lm_head.bias.tolist() == list(KEPT)


def test_other_ids_or_another_dtype_make_another_fingerprint(tmp_path: Path, some_ids: str) -> None:
    folder = make_tiny_model(tmp_path / "m", vocab_size=V)
    (tmp_path / "others.json").write_text(json.dumps([*KEPT[:-1], 95]))
    variants = [
        load(folder),
        load(folder, dtype="int8"),
        load(folder, head_ids=some_ids),
        load(folder, head_ids=some_ids, dtype="int8"),
        load(folder, head_ids=str(tmp_path / "others.json")),
    ]
    assert len({variant.loaded.fingerprint for variant in variants}) == len(variants)
    assert load(folder, head_ids="all").loaded.fingerprint == variants[0].loaded.fingerprint


def draft_folder(
    path: Path, target: Path, drafter: Path, *, own_norm: bool = True, **changes: Any
) -> tuple[Path, dict[str, torch.Tensor]]:
    """A draft LM made of `drafter`'s layers for `target`, and the tensors of the whole that it stands for."""
    mine = dict(AutoModelForCausalLM.from_pretrained(drafter, dtype=torch.float32).state_dict())
    theirs = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).state_dict()
    shared = {EMBEDDING, HEAD} if own_norm else {EMBEDDING, HEAD, FINAL_NORM}
    config = json.loads((drafter / "config.json").read_text())
    settings = {
        "kind": "lm",
        "target": target.name,
        "target_base_fingerprint": "",
        "tokenizer_hash": read_vocabulary(str(target), V)[1],
        "hidden_size": 64,
        "vocab_size": V,
        "head_ids": None,
        "config": {name: config[name] for name in config if name not in ("architectures", "dtype")},
        **changes,
    }
    kept = {name: tensor for name, tensor in mine.items() if name not in shared}
    write_draft_folder(path, settings, kept, "", int8=False)
    whole = {**{name: theirs[name] for name in shared}, **{name: t.bfloat16().float() for name, t in kept.items()}}
    return path, whole


@pytest.mark.parametrize("own_norm", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_draft_folder_computes_with_its_targets_embeddings_and_head(
    tmp_path: Path, tied: bool, own_norm: bool
) -> None:
    target = make_tiny_model(tmp_path / "target", vocab_size=V, seed=1, tie_word_embeddings=tied)
    drafter = make_tiny_model(tmp_path / "drafter", vocab_size=V, layers=1, seed=2)
    folder, whole = draft_folder(tmp_path / "draft", target, drafter, own_norm=own_norm)
    stock = AutoModelForCausalLM.from_pretrained(drafter, dtype=torch.float32)
    stock.load_state_dict(whole)
    draft = load(folder, target)
    with torch.inference_mode():
        expected = stock(torch.from_numpy(random_ids(9).astype(np.int64))[None]).logits[0, -1]
    torch.testing.assert_close(logits(draft.loaded), expected, rtol=0, atol=1e-4)
    assert draft.loaded.num_layers == 1 and draft.loaded.name == "draft"


def test_a_draft_folder_brings_its_own_head_ids_which_a_setting_overrules(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", vocab_size=V, eos_id=40)
    folder, _ = draft_folder(tmp_path / "draft", target, target, head_ids="first:8")
    own, other, whole = (
        load(folder, target),
        load(folder, target, head_ids="first:3"),
        load(folder, target, head_ids="all"),
    )
    assert own.ids is not None and own.ids.target_ids.tolist() == [*range(8), 40]
    assert other.ids is not None and len(other.ids) == 4 and whole.ids is None


def test_weights_of_another_target_make_another_fingerprint(tmp_path: Path) -> None:
    target, other = (make_tiny_model(tmp_path / str(seed), vocab_size=V, seed=seed) for seed in (1, 2))
    folder, _ = draft_folder(tmp_path / "draft", target, target)
    assert load(folder, target).loaded.fingerprint != load(folder, other).loaded.fingerprint


def test_a_draft_folder_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", vocab_size=V)
    wide = make_tiny_model(tmp_path / "wide", vocab_size=V, hidden=128)
    long = make_tiny_model(tmp_path / "long", vocab_size=V + 1)
    folder, _ = draft_folder(tmp_path / "draft", target, target)
    strange = {"model_type": "x"}
    cases: list[tuple[Path, Path | None, dict[str, Any], str]] = [
        (folder, None, {}, "target_model = None.*give the target's folder"),
        (folder, wide, {}, "trained for target: hidden size 64, not 128 as wide"),
        (folder, long, {}, "width of the vocabulary 97, not 98"),
        (folder, target, {"num_layers": 1}, "num_layers = 1.*served whole"),
        (draft_folder(tmp_path / "a", target, target, tokenizer_hash="x")[0], target, {}, "tokenizer hash x, not"),
        (draft_folder(tmp_path / "b", target, target, kind="medusa")[0], target, {}, "serve it as medusa:FOLDER"),
        (
            draft_folder(tmp_path / "c", target, target, config=strange)[0],
            target,
            {},
            "none of transformers",
        ),
        (folder, target, {"dtype": "float16"}, "dtype = 'float16'"),
        (folder, target, {"head_ids": "first:x"}, "head_ids = 'first:x'"),
    ]
    for path, whose, options, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            load(path, whose, **options)


def test_tensors_that_are_missing_are_named_and_never_made_up(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", vocab_size=V)
    deeper = json.loads((target / "config.json").read_text()) | {"num_hidden_layers": 3}
    folder, _ = draft_folder(tmp_path / "draft", target, target, config=deeper)
    with pytest.raises(ConfigError, match=r"not those of its config: model\.layers\.2"):
        load(folder, target)


def test_a_whole_model_is_loaded_as_ever(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", vocab_size=V)
    draft = load(folder, num_layers=1)
    ordinary = load_model(str(folder), dtype="float32", device="cpu", num_layers=1)
    assert draft.loaded.fingerprint == ordinary.fingerprint and draft.ids is None and draft.translation is None
    assert torch.equal(logits(draft.loaded), logits(ordinary))
