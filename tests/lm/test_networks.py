from __future__ import annotations

import gc
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import AutoModelForCausalLM, PreTrainedModel

from specdec.core.errors import ConfigError
from specdec.lm import lean, networks
from specdec.lm.lean import LeanNetwork
from specdec.lm.loading import load_model
from specdec.lm.networks import Unsupported, build_network
from specdec.lm.runner import Runner, Segment
from tests.tiny_models import FAMILIES, make_tiny_model


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return cast(PreTrainedModel, model.eval().requires_grad_(False))


def refusing(reason: str) -> Any:
    def build(model: PreTrainedModel, dtype: str) -> Any:
        raise Unsupported(reason)

    return SimpleNamespace(build=build)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Module of each network; only "last" can serve."""
    found: dict[str, Any] = {"first": refusing("too old"), "second": refusing("too new")}
    found["last"] = SimpleNamespace(build=lambda model, dtype: "built")
    monkeypatch.setattr(networks, "NETWORKS", {name: name for name in found})
    monkeypatch.setattr(networks, "import_module", found.__getitem__)
    return found


def test_auto_takes_the_first_that_can_serve_and_logs_why_none_before_it(
    modules: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "specdec.lm.networks"):
        assert build_network("auto", Any, "float32") == "built"  # type: ignore[arg-type, comparison-overlap]
    assert [record.message for record in caplog.records] == ["network last; not first: too old; second: too new"]


@pytest.mark.parametrize(("name", "says"), [("second", "too new"), ("unheard of", "first, second, last")])
def test_a_network_that_cannot_serve_is_named(modules: dict[str, Any], name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        build_network(name, Any, "float32")  # type: ignore[arg-type]
    assert caught.value.field == "network"


@pytest.mark.parametrize("network", ["lean", "stock"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_original_weights_are_freed(tmp_path: Path, network: str, dtype: networks.Dtype, tied: bool) -> None:
    """All but the embedding and, where they are kept as they are, the norms."""
    folder = make_tiny_model(tmp_path / "llama", tie_word_embeddings=tied)
    model = transformers_model(folder, torch.float32 if dtype == "float32" else torch.bfloat16)
    weak: Any = StorageWeakRef
    matrices = {n: weak(p.untyped_storage()) for n, p in model.named_parameters() if p.dim() == 2}
    built = build_network(network, model, dtype)
    gc.collect()
    alive = {name for name, storage in matrices.items() if not storage.expired()}
    assert alive <= {"model.embed_tokens.weight"}
    assert built.kv_shape.layers == 2


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}),
        ("gemma2", {"query_pre_attn_scalar": 16}),
        ("olmo2", {}),
    ],
)
def test_lean_refuses_what_it_does_not_compute_and_stock_serves_it(
    tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    folder = make_tiny_model(tmp_path / family, family, **options)
    with pytest.raises(Unsupported):
        lean.build(transformers_model(folder), "float32")
    assert type(load_model(str(folder), dtype="float32", device="cpu").network).__name__ == "StockNetwork"


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True, "heads": 4, "kv_heads": 4}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": YARN}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        ("mistral", {"sliding_window": None}),
    ],
)
def test_lean_serves_every_shape_of_its_families(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    folder = make_tiny_model(tmp_path / family, family, **options)
    runner = Runner(load_model(str(folder), dtype="float32", device="cpu", network="lean"), 64)
    ids = np.random.default_rng(0).integers(0, 97, 40).astype(np.uint32)
    [logits] = runner.forward([Segment(runner.new_sequence(), ids, wanted=40)])
    with torch.inference_mode():
        expected = transformers_model(folder)(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    assert float((logits - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float32_a_sequence_is_the_same_whatever_stands_beside_it(
    tiny_folders: dict[str, Path], family: str
) -> None:
    """Bit for bit, of a segment of as many rows."""
    network = load_model(str(tiny_folders[family]), dtype="float32", device="cpu", network="lean")
    assert isinstance(network.network, LeanNetwork)
    runner = Runner(network, 512)
    ids = np.arange(20, dtype=np.uint32)
    alone, together, other = (runner.new_sequence() for _ in range(3))
    for cut in (slice(0, 19), slice(19, 20)):
        [first] = runner.forward([Segment(alone, ids[cut], wanted=1)])
        _, second = runner.forward([Segment(other, ids[:7]), Segment(together, ids[cut], wanted=1)])
        other.rewind(ids[:0])
        assert torch.equal(first, second)
