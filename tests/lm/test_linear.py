from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from specdec.lm import linear
from specdec.lm.linear import LINEARS, Linear, dequantise, make_gate, make_linear, quantise, stack_linears
from specdec.lm.networks import Dtype

PACKABLE = [dtype for dtype in (torch.float32, torch.bfloat16) if linear.can_pack(dtype)]


def weights(out: int = 48, inner: int = 40, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    module = nn.Linear(inner, out, bias=True)
    return module.to(dtype).requires_grad_(False)


def served(module: nn.Linear, variant: str) -> Linear:
    return LINEARS[variant](module.weight, module.bias)


@pytest.mark.parametrize("dtype", PACKABLE)
@pytest.mark.parametrize("shape", [(1, 40), (7, 40), (1, 1, 40), (2, 3, 40), (130, 40)])
def test_packed_weights_compute_what_plain_ones_do(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    module, x = weights(dtype=dtype), torch.randn(shape).to(dtype)
    exact = nn.functional.linear(x.double(), module.weight.double(), module.bias.double())
    for variant in ("packed", "plain"):
        y = served(module, variant)(x)
        assert y.shape == exact.shape and y.dtype == dtype
        torch.testing.assert_close(y.double(), exact, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0)


@pytest.mark.parametrize("variant", LINEARS)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_residual_is_added(variant: str, rows: int) -> None:
    module = served(weights(dtype=torch.bfloat16), variant)
    x, residual = torch.randn(rows, 40).bfloat16(), torch.randn(rows, 48).bfloat16()
    expected = module(x).float() + residual.float()
    torch.testing.assert_close(module.plus(x, residual).float(), expected, atol=3e-2, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_gate_is_silu_of_one_projection_times_the_other(dtype: Dtype, rows: int) -> None:
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    gate, up = weights(dtype=kind, seed=1), weights(dtype=kind, seed=2)
    x = torch.randn(rows, 40).to(kind)
    expected = nn.functional.silu(make_linear(gate.weight, gate.bias, dtype)(x).float())
    expected *= make_linear(up.weight, up.bias, dtype)(x).float()
    y = make_gate(gate, up, dtype)(x)
    torch.testing.assert_close(y.float(), expected, atol=1e-5 if dtype == "float32" else 2e-2, rtol=0)


def test_stacked_linears_give_their_outputs_one_behind_the_other() -> None:
    first, second, x = weights(16), nn.Linear(40, 8, bias=False).requires_grad_(False), torch.randn(3, 40)
    y = stack_linears([first, second], "float32")(x)
    torch.testing.assert_close(y, torch.cat([first(x), second(x)], dim=1))


@pytest.mark.skipif(torch.float32 not in PACKABLE, reason="this torch does not pack float32")
def test_in_float32_a_row_is_the_same_whatever_stands_beside_it() -> None:
    module, x = weights(96, 72), torch.randn(70, 72)
    packed, gate = served(module, "packed"), make_gate(weights(96, 72), weights(96, 72, seed=1), "float32")
    residual = torch.randn(70, 96)
    for rows in (1, 2, 3, 8, 33):
        assert torch.equal(packed(x[:rows]), packed(x)[:rows])
        assert torch.equal(packed.plus(x[:rows], residual[:rows]), packed.plus(x, residual)[:rows])
        assert torch.equal(gate(x[:rows]), gate(x)[:rows])


def test_quantised_weights_are_within_half_a_step() -> None:
    weight = torch.randn(30, 50) * torch.logspace(-3, 3, 30)[:, None]
    weight[3] = 0
    steps, scales = quantise(weight)
    assert (steps.dtype, scales.dtype, int(steps.abs().max())) == (torch.int8, torch.float32, 127)
    assert torch.equal(scales, scales.bfloat16().float())
    error = (dequantise(steps, scales) - weight).abs()
    assert (error <= 0.5 * scales[:, None] + weight.abs() / 256).all()  # the scale itself is rounded to 8 bits
    assert torch.equal(dequantise(steps, scales)[3], weight[3])
    again, same = quantise(dequantise(steps, scales))
    assert torch.equal(again, steps) and torch.equal(same, scales)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("inner", [33, 40, 48])
def test_int8_is_exact_for_its_own_weights(rows: int, inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fused product, which not every width may use, and without."""
    module, x = weights(inner=inner, dtype=torch.bfloat16), torch.randn(rows, inner).bfloat16()
    exact = nn.functional.linear(x.double(), dequantise(*quantise(module.weight)).double(), module.bias.double())
    fused = served(module, "int8")(x)
    monkeypatch.delattr(torch, "_weight_int8pack_mm", raising=False)
    for y in (fused, served(module, "int8")(x)):
        torch.testing.assert_close(y.double(), exact, atol=2e-2, rtol=0)


def test_without_the_operator_weights_stay_plain_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "_mkldnn", object())
    monkeypatch.setattr(linear, "_packs", {})
    with caplog.at_level(logging.WARNING, "specdec.lm.linear"):
        found = [make_linear(weights().weight, None, "float32") for _ in range(2)]
    assert [type(f).__name__ for f in found] == ["PlainLinear"] * 2
    assert len(caplog.records) == 1 and "not prepacked" in caplog.text
