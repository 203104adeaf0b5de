"""A lean decoder for models shaped like Llama: few operations a layer, fused projections, none of them for rows that
nobody asked for. `transformers`' modules (`specdec.lm.stock`) are its oracle."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from specdec.lm.attention import RaggedAttention
from specdec.lm.cuda_graphs import CudaCapture, CudaGraphs
from specdec.lm.linear import make_gate, make_linear, stack_linears
from specdec.lm.mapped import unload
from specdec.lm.network import Attention
from specdec.lm.networks import Dtype, Unsupported
from specdec.lm.ragged import RaggedBatch
from specdec.lm.stock import kv_shape
from specdec.lm.taps import tapped
from specdec.lm.torch_kv import TorchKV

FAMILIES = {"llama", "qwen2", "qwen3", "mistral"}
ROPES = {"default", "linear", "llama3", "yarn"}  # whose angles depend on the position alone
_LINEARS = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
_NORMS = {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"}


def build(model: PreTrainedModel, dtype: Dtype) -> LeanNetwork | CudaGraphs:
    """Takes the weights over, layer by layer, so that little is held twice. Raises Unsupported, with the model
    untouched, for whatever is more than this decoder computes."""
    check(model)
    network = LeanNetwork(model, dtype)
    device = network.kv_shape.device
    return CudaGraphs(network, CudaCapture(device)) if device.type == "cuda" else network


def check(model: PreTrainedModel) -> None:
    """Raises Unsupported where a network for Llama-shaped models would compute something else than `model`."""
    config: Any = model.config
    if config.model_type not in FAMILIES:
        raise Unsupported(f"model type {config.model_type}")
    if config.hidden_act != "silu":
        raise Unsupported(f"activation {config.hidden_act}")
    body: Any = model.model
    if body.rotary_emb.rope_type not in ROPES:
        raise Unsupported(f"rope type {body.rotary_emb.rope_type}")
    if 2 * len(body.rotary_emb.inv_freq) != body.layers[0].self_attn.head_dim:
        raise Unsupported("partial rotary embedding")
    known = {f"{name}.{kind}" for name in _LINEARS for kind in ("weight", "bias")} | {f"{n}.weight" for n in _NORMS}
    if strange := {name for layer in body.layers for name, _ in layer.named_parameters()} - known:
        raise Unsupported(f"unknown weights {', '.join(sorted(strange))}")


def windows(model: PreTrainedModel) -> list[int | None]:
    """Per layer, the positions that a row sees, itself included; None: all."""
    config: Any = model.config
    layers: Any = cast(Any, model.model).layers
    if config.model_type == "mistral":
        return [config.sliding_window] * len(layers)
    return [getattr(layer.self_attn, "sliding_window", None) for layer in layers]


class LeanLayer:
    """One decoder layer: its own copy of the weights of a stock one."""

    def __init__(self, layer: Any, index: int, dtype: Dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index = index
        self._dim = int(attention.head_dim)
        self._heads = attention.q_proj.out_features // self._dim
        self._kv_heads = attention.k_proj.out_features // self._dim
        self._norms = (_norm(layer.input_layernorm), _norm(layer.post_attention_layernorm))
        self._head_norm = self._of_heads(attention) if hasattr(attention, "q_norm") else None
        self._qkv = stack_linears([attention.q_proj, attention.k_proj, attention.v_proj], dtype)
        self._out = make_linear(attention.o_proj.weight, attention.o_proj.bias, dtype)
        self._gate = make_gate(mlp.gate_proj, mlp.up_proj, dtype)
        self._down = make_linear(mlp.down_proj.weight, mlp.down_proj.bias, dtype)

    def _of_heads(self, attention: Any) -> tuple[torch.Tensor, float]:
        """One weight for each query and key head: [heads + kv_heads, D]."""
        (query, eps), (key, _) = _norm(attention.q_norm), _norm(attention.k_norm)
        return torch.cat([query.expand(self._heads, -1), key.expand(self._kv_heads, -1)]), eps

    def __call__(self, hidden: torch.Tensor, rope: torch.Tensor, attention: Attention) -> torch.Tensor:
        """hidden: [total, hidden]; rope: [total, 2, 1, D], cosines and signed sines."""
        first, second = self._norms
        projected = self._qkv(_normed(hidden, first)).view(len(hidden), -1, self._dim)
        rotated = self._rotate(projected[:, : self._heads + self._kv_heads], rope)
        query, key = rotated[:, : self._heads], rotated[:, self._heads :]
        mixed = attention(self._index, query, key, projected[:, self._heads + self._kv_heads :])
        hidden = self._out.plus(mixed, hidden)
        return self._down.plus(self._gate(_normed(hidden, second)), hidden)

    def _rotate(self, x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """x: [total, heads + kv_heads, D]. The halves of a head change places, the first negated: its sign is in the
        table."""
        if self._head_norm is not None:
            weight, eps = self._head_norm
            x = functional.rms_norm(x, (self._dim,), None, eps) * weight
        return torch.addcmul(x * rope[:, 0], x.roll(self._dim // 2, -1), rope[:, 1])


class LeanNetwork:
    """See `specdec.lm.network.Network`. windows: per layer, see `windows`. scaling: of scores."""

    def __init__(self, model: PreTrainedModel, dtype: Dtype) -> None:
        body: Any = model.model
        self.kv_shape = kv_shape(model)
        self.hidden = int(cast(Any, model.config).hidden_size)
        self.width = len(cast(Any, model).lm_head.weight)
        self.windows = windows(model)
        self.scaling = float(body.layers[0].self_attn.scaling)
        self._rope = _rope_table(body.rotary_emb, int(cast(Any, model.config).max_position_embeddings), model.dtype)
        self._layers: list[LeanLayer] = []
        for i, layer in enumerate(body.layers):
            self._layers.append(LeanLayer(layer, i, dtype))
            unload(layer.parameters())
            body.layers[i] = nn.Identity()  # frees the layer's own weights before the next is packed
        self._norm = _norm(body.norm)
        self._embedding = None if body.embed_tokens is None else body.embed_tokens.weight.detach()
        self._head = make_linear(cast(Any, model).lm_head.weight, cast(Any, model).lm_head.bias, dtype)
        unload([cast(Any, model).lm_head.weight])
        cast(Any, model).lm_head = body.embed_tokens = nn.Identity()

    def new_storage(self, num_blocks: int) -> TorchKV:
        return TorchKV(self.kv_shape, num_blocks)

    def forward(
        self, batch: RaggedBatch, storage: TorchKV, layers: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Network.forward`."""
        device = storage.data.device
        first = torch.from_numpy(batch.input_ids) if batch.inputs is None else batch.inputs
        position_ids = torch.from_numpy(batch.position_ids).to(device)
        attention = RaggedAttention(batch, storage, self.windows, self.scaling)
        states = self.decoder(first.to(device), position_ids, attention, layers)
        wanted = states[-1].index_select(0, torch.from_numpy(batch.wanted_rows).to(device))
        return self.head(wanted), tapped(states[:-1], torch.from_numpy(batch.tapped_rows).to(device), self.hidden)

    def decoder(
        self, first: torch.Tensor, position_ids: torch.Tensor, attention: Attention, layers: tuple[int, ...] = ()
    ) -> list[torch.Tensor]:
        """first: ids, int64[total], or what takes the place of their embeddings, float32[total, hidden]; position_ids:
        int64[total]. Returns the residual stream after so many layers each, and after all: [total, hidden], before the
        last norm. No shape depends on a value."""
        hidden = first.to(self.kv_shape.dtype) if first.is_floating_point() else self._embedded(first)
        rope = self._rope.index_select(0, position_ids)
        kept = {0: hidden}
        for depth, layer in enumerate(self._layers, 1):
            hidden = layer(hidden, rope, attention)
            if depth in layers:
                kept[depth] = hidden
        return [*(kept[layer] for layer in layers), hidden]

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        assert self._embedding is not None, "a model without an embedding needs inputs"
        return functional.embedding(ids, self._embedding)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] as `decoder` returns it -> float32[rows, padded vocabulary]."""
        return cast(torch.Tensor, self._head(_normed(hidden, self._norm))).float()


def _norm(module: Any) -> tuple[torch.Tensor, float]:
    return module.weight.detach(), float(module.variance_epsilon)


def _normed(x: torch.Tensor, norm: tuple[torch.Tensor, float]) -> torch.Tensor:
    weight, eps = norm
    return functional.rms_norm(x, weight.shape, weight, eps)


def _rope_table(rotary: Any, positions: int, dtype: torch.dtype) -> torch.Tensor:
    """[positions, 2, 1, D]: cosines, and sines with the first half negated."""
    device = rotary.inv_freq.device
    with torch.no_grad():
        cos, sin = rotary(torch.zeros(1, dtype=dtype, device=device), torch.arange(positions, device=device)[None])
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return torch.stack([cos[0], signed], dim=1)[:, :, None]
