"""Linear layers as they are served: weights only, no gradients, no state dict.

Every variant is built from a plain weight [out, in] and a bias [out] or None, keeps its own copy of the weight where
it needs another form, and maps [..., in] to [..., out] in the input's dtype."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from specdec.lm.networks import Dtype

_ROWS = 8  # the packed form is chosen for this many rows; it serves every other number as well
_CHANNELS = 4096  # quantised at a time: in float32 a whole head would take more than the model
_log = logging.getLogger(__name__)
_mkldnn: Any = torch.ops.mkldnn


class Linear(nn.Module):
    """What all variants share."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight: [out, in], bias: [out]."""
        super().__init__()
        self.bias = None if bias is None else bias.detach()

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + self(x)."""
        return residual + cast(torch.Tensor, self(x))


class PlainLinear(Linear):
    """The weight as it is: for devices without a packed form."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self.weight = weight.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


class PackedLinear(Linear):
    """The weight reordered once into oneDNN's own layout, which reads nearly twice as fast on few rows (CPU, float32
    and bfloat16). In float32 a row's result does not depend on how many rows there are: one row alone would take
    another kernel, and is computed as two."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self.packed = _mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        self.paired = weight.dtype == torch.float32

    def forward(self, x: torch.Tensor, then: str = "none") -> torch.Tensor:
        """then: what oneDNN applies to the result, "none" or "swish"."""
        if self.paired and x.numel() == x.shape[-1]:
            y = _mkldnn._linear_pointwise(_pair(x), self.packed, self.bias, then, [], "")[:1]
            return cast(torch.Tensor, y.view(*x.shape[:-1], y.shape[-1]))
        return cast(torch.Tensor, _mkldnn._linear_pointwise(x, self.packed, self.bias, then, [], ""))

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.combine(x, residual, "add")

    def combine(self, x: torch.Tensor, other: torch.Tensor, how: str) -> torch.Tensor:
        """self(x) and `other`, "add"ed or "mul"tiplied before anything is rounded: [rows, in], [rows, out]."""
        paired = self.paired and len(x) == 1
        if paired:
            x, other = _pair(x), _pair(other)
        y = cast(torch.Tensor, _mkldnn._linear_pointwise.binary(x, other, self.packed, self.bias, how))
        return y[:1] if paired else y


class Int8Linear(Linear):
    """int8 weights with one scale per output channel; activations and sums stay in floating point."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self.weight, scales = quantise(weight.detach())
        self.scales = scales.to(weight.dtype)
        self.fused = _has_int8(self.weight, self.scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.fused:
            return functional.linear(x, dequantise(self.weight, self.scales), self.bias)
        rows = x.reshape(-1, x.shape[-1])
        y = torch._weight_int8pack_mm(rows, self.weight, self.scales)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], y.shape[-1])


LINEARS: dict[str, type[Linear]] = {"packed": PackedLinear, "plain": PlainLinear, "int8": Int8Linear}


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, dtype: Dtype) -> Linear:
    """The variant that serves `dtype` on the weight's device: [out, in], [out]. The caller drops its weight."""
    return LINEARS[_variant(weight, dtype)](weight, bias)


def _variant(weight: torch.Tensor, dtype: Dtype) -> str:
    if dtype == "int8":
        return "int8"
    return "packed" if weight.device.type == "cpu" and can_pack(weight.dtype) else "plain"


class PackedGate(nn.Module):
    """silu(gate(x)) * up(x): [rows, in] to [rows, out], in two calls and nothing between them."""

    def __init__(self, gate: nn.Linear, up: nn.Linear) -> None:
        super().__init__()
        self.gate = PackedLinear(gate.weight, gate.bias)
        self.up = PackedLinear(up.weight, up.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up.combine(x, self.gate.forward(x, "swish"), "mul")


class StackedGate(nn.Module):
    """The same, with both weights in one linear."""

    def __init__(self, stacked: Linear) -> None:
        super().__init__()
        self.stacked = stacked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = cast(torch.Tensor, self.stacked(x)).chunk(2, dim=-1)
        return functional.silu(gate) * up


def make_gate(gate: nn.Linear, up: nn.Linear, dtype: Dtype) -> nn.Module:
    """[rows, in] to [rows, out]: silu(gate(x)) * up(x)."""
    if _variant(gate.weight, dtype) == "packed":
        return PackedGate(gate, up)
    return StackedGate(stack_linears([gate, up], dtype))


def stack_linears(linears: Sequence[nn.Linear], dtype: Dtype) -> Linear:
    """One linear whose outputs are those of `linears`, one behind the other."""
    bias = None
    if any(linear.bias is not None for linear in linears):
        bias = torch.cat([_bias_of(linear) for linear in linears])
    return make_linear(torch.cat([linear.weight.detach() for linear in linears]), bias, dtype)


def _bias_of(linear: nn.Linear) -> torch.Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()


def _pair(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, -1).repeat(2, 1)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch, on this processor, packs weights of `dtype`."""
    if dtype not in _packs:
        try:
            PackedLinear(torch.zeros(16, 16, dtype=dtype), None)(torch.zeros(2, 16, dtype=dtype))
            _packs[dtype] = True
        except (AttributeError, RuntimeError) as error:
            _log.warning("weights of %s are not prepacked, forwards are slower: %s", dtype, error)
            _packs[dtype] = False
    return _packs[dtype]


_packs: dict[torch.dtype, bool] = {}


def _has_int8(weight: torch.Tensor, scales: torch.Tensor) -> bool:
    """Whether torch multiplies by this weight without dequantising it. Its CPU kernel reads beyond the end of rows that
    are no whole number of vectors long (of 16), and then returns anything or crashes."""
    if weight.shape[1] % 16:
        return False
    try:
        x = torch.zeros(1, weight.shape[1], dtype=scales.dtype, device=weight.device)
        torch._weight_int8pack_mm(x, weight, scales)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8[out, in], float32[out]): symmetric, scale = max |w| / 127 of each output channel, rounded to bfloat16 so
    that kernels which take scales in the activations' dtype compute with the same number."""
    steps = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    for first in range(0, len(weight), _CHANNELS):
        part = slice(first, first + _CHANNELS)
        exact = weight[part].float()
        scales[part] = (exact.abs().amax(dim=1) / 127).to(torch.bfloat16)
        exact = exact / torch.where(scales[part] > 0, scales[part], 1.0)[:, None]
        steps[part] = exact.round_().clamp_(-127, 127)
    return steps, scales


def dequantise(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[out, in] in the dtype of `scales`."""
    return weight.to(scales.dtype) * scales[:, None]
