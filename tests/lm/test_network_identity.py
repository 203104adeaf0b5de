"""Every network computes the model that `transformers` computes, in every dtype and as far as contexts go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.core.errors import ConfigError
from specdec.lm.linear import dequantise, quantise
from specdec.lm.networks import NETWORKS
from specdec.lm.runner import Runner, Segment
from tests.lm.served import close, random_ids, serve, stock_logits
from tests.tiny_models import FAMILIES, make_tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(
    runners: dict[str, Runner], stock: dict[str, Any], family: str
) -> None:
    runner, prompt = runners[family], random_ids(9, seed=4)
    expected = stock[family].generate(
        torch.from_numpy(prompt.astype(np.int64))[None], max_new_tokens=40, do_sample=False, pad_token_id=0
    )[0, 9:]
    sequence, pending, tokens = runner.new_sequence(), prompt, []
    for _ in range(40):
        [logits] = runner.forward([Segment(sequence, pending, wanted=1)])
        tokens.append(int(logits[0].argmax()))
        pending = np.array(tokens[-1:], dtype=np.uint32)
    assert tokens == expected.tolist()
    sequence.release()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(
    tiny_folders: dict[str, Path], stock: dict[str, Any], network: str, family: str
) -> None:
    runner, ids = serve(tiny_folders[family], network, "bfloat16"), random_ids(40)
    [logits] = runner.forward([Segment(runner.new_sequence(), ids, wanted=40)])
    theirs = AutoModelForCausalLM.from_pretrained(
        tiny_folders[family], attn_implementation="eager", dtype=torch.bfloat16
    )
    exact = stock_logits(stock[family], ids)
    assert logits.dtype == torch.float32
    assert 0 < mean_error(logits, exact) < 1.5 * mean_error(stock_logits(theirs, ids), exact)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_int8_is_the_model_with_rounded_weights(tiny_folders: dict[str, Path], network: str, family: str) -> None:
    """Its error against that model in float32 is one of bfloat16 activations; the model it was is farther away."""
    runner, ids = serve(tiny_folders[family], network, "int8"), random_ids(40)
    [logits] = runner.forward([Segment(runner.new_sequence(), ids, wanted=40)])
    low: Any
    exact: Any
    unrounded: Any
    low, exact, unrounded = (
        AutoModelForCausalLM.from_pretrained(tiny_folders[family], attn_implementation="eager", dtype=torch.bfloat16)
        for _ in range(3)
    )
    round_linears(low)
    round_linears(exact)
    truth = stock_logits(exact.to(dtype=torch.float32), ids)
    assert mean_error(logits, truth) < 1.5 * mean_error(stock_logits(low, ids), truth)
    assert mean_error(logits, truth) < mean_error(logits, stock_logits(unrounded.to(dtype=torch.float32), ids))


@pytest.mark.parametrize("network", NETWORKS)
def test_contexts_of_8k_agree_with_transformers(tmp_path_factory: pytest.TempPathFactory, network: str) -> None:
    folder = make_tiny_model(
        tmp_path_factory.mktemp("long") / "llama", layers=1, hidden=32, heads=2, kv_heads=1, max_context=8256
    )
    runner, ids = serve(folder, network, kv_tokens=8256), random_ids(8200)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sequence = runner.new_sequence()
    for first in range(0, 8192, 1024):
        runner.forward([Segment(sequence, ids[first : first + 1024])])
    [logits] = runner.forward([Segment(sequence, ids[8192:], wanted=8)])
    assert close(logits, stock_logits(model, ids)[8192:])


def test_attention_that_is_not_plain_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "gemma2", "gemma2", query_pre_attn_scalar=16)
    runner = serve(folder, "stock", kv_tokens=100)
    with pytest.raises(ConfigError, match="soft caps"):
        runner.forward([Segment(runner.new_sequence(), random_ids(3))])


def mean_error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float((logits.float() - exact).abs().mean())


def round_linears(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = dequantise(*quantise(module.weight.data)).to(module.weight.dtype)
