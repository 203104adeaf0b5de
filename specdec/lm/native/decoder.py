"""A Llama-shaped decoder in C, one call a forward: weights packed for this processor's vectors or bf16 tiles, paged KV
in the layout that attention reads. No result of a row depends on the other rows of its forward, bit for bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from specdec.lm.lean import check, windows
from specdec.lm.linear import quantise
from specdec.lm.mapped import unload
from specdec.lm.native import structs
from specdec.lm.native.batch import Workspace, filled
from specdec.lm.native.library import library
from specdec.lm.native.packing import LANES, PAIRED, Arena, interleave, round_up
from specdec.lm.native.storage import NativeKV
from specdec.lm.network import KVStorage
from specdec.lm.networks import Dtype, Unsupported
from specdec.lm.ragged import RaggedBatch
from specdec.lm.stock import kv_shape

_WEIGHTS = {"float32": 0, "bfloat16": 1, "int8": 2}
_MAX_HEAD_DIM = 256


def build(model: PreTrainedModel, dtype: Dtype) -> NativeNetwork:
    """Takes the weights over, layer by layer, so that no more than one layer is held twice.

    Raises Unsupported, the model untouched: another family or device, or no compiler."""
    _check(model)
    tiles = bool(library().specdec_tiles())
    return NativeNetwork(model, dtype, tiles=tiles and dtype != "float32")


def _check(model: Any) -> None:
    check(model)
    if model.device.type != "cpu":
        raise Unsupported(f"computes on CPU, not on {model.device.type}")
    if kv_shape(model).head_dim > _MAX_HEAD_DIM:
        raise Unsupported(f"head dimension {kv_shape(model).head_dim}, more than {_MAX_HEAD_DIM}")
    if model.config.hidden_size % LANES:
        raise Unsupported(f"hidden size {model.config.hidden_size}, no multiple of {LANES}")
    if len(_windows(model)) > 1:
        raise Unsupported("sliding windows of several lengths")


def _windows(model: PreTrainedModel) -> set[int]:
    return {window for window in windows(model) if window is not None}


class NativeNetwork:
    """The C `Model` and everything that it points to."""

    def __init__(self, model: Any, dtype: Dtype, *, tiles: bool) -> None:
        config, attention = model.config, model.model.layers[0].self_attn
        self._dtype, self._tiles = dtype, tiles
        self._kept: list[Any] = []
        self.kv_shape = kv_shape(model)
        rotary = model.model.rotary_emb
        self._inv_freq: NDArray[np.float32] = rotary.inv_freq.float().numpy().copy()
        self._rope_scale = np.float32(rotary.attention_scaling)
        self._window = next(iter(_windows(model)), None)
        self._vocab = len(model.lm_head.weight)  # rows of the head: fewer than ids where it was cut
        table = _embedding(model)
        self._embeds, tied = table is not None, table is model.lm_head.weight
        self._arena = Arena(_packed_bytes(model, dtype, tied))
        layers = (structs.Layer * len(model.model.layers))()
        self.model = structs.Model(
            layers=len(layers),
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=self.kv_shape.heads,
            head_dim=self.kv_shape.head_dim,
            weights=_WEIGHTS[dtype],
            amx=tiles,
            kv_bf16=dtype != "float32",
            eps=config.rms_norm_eps,
            scale=attention.scaling,
            layer=ctypes.addressof(layers),
            norm_final=self._vector(model.model.norm.weight),
            embedding=None if table is None or (tied and dtype != "int8") else self._table(table),
        )
        for to, layer, window in zip(layers, model.model.layers, windows(model), strict=True):
            self._fill(to, layer)
            to.windowed = window is not None
            _drop(layer)
        self.model.head = self._linear(model.lm_head.weight, model.lm_head.bias)
        _drop(model)
        self._kept.append(layers)
        self._workspace = Workspace(self.model)

    def new_storage(self, num_blocks: int) -> NativeKV:
        return NativeKV(self.model, self.kv_shape, num_blocks)

    def forward(
        self, batch: RaggedBatch, storage: KVStorage, layers: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(storage, NativeKV), "a storage of another network"
        assert self._embeds or batch.inputs is not None, "a model without an embedding needs inputs"
        rotation = batch.position_ids.astype(np.float32)[:, None] * self._inv_freq
        cos, sin = np.cos(rotation) * self._rope_scale, np.sin(rotation) * self._rope_scale
        logits = torch.empty((len(batch.wanted_rows), round_up(self._vocab, LANES)))
        hidden = torch.empty((len(batch.tapped_rows), len(layers), self.model.hidden))
        with filled(batch, self._workspace, storage, self._window, cos, sin, layers, logits, hidden) as arguments:
            failed = library().specdec_forward(ctypes.addressof(self.model), ctypes.addressof(arguments))
        if failed:
            raise MemoryError("no memory for the work items of a forward")
        return logits[:, : self._vocab], hidden

    def _fill(self, to: structs.Layer, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        to.qkv = self._linear(*_stacked(projections, torch.cat))
        to.out = self._linear(attention.o_proj.weight, attention.o_proj.bias)
        to.gate_up = self._linear(*_stacked((mlp.gate_proj, mlp.up_proj), lambda both: interleave(*both)))
        to.down = self._linear(mlp.down_proj.weight, mlp.down_proj.bias)
        to.norm_attention = self._vector(layer.input_layernorm.weight)
        to.norm_mlp = self._vector(layer.post_attention_layernorm.weight)
        if hasattr(attention, "q_norm"):
            to.norm_query, to.norm_key = self._vector(attention.q_norm.weight), self._vector(attention.k_norm.weight)

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> structs.Linear:
        n, k = weight.shape
        scales = None
        if self._dtype == "int8":
            weight, scales = quantise(weight)
        packed = self._arena.pack(weight, self._tiles)
        wide, deep = round_up(n, LANES), round_up(k, PAIRED)
        return structs.Linear(packed.data_ptr(), self._vector(scales, wide), self._vector(bias, wide), wide, deep)

    def _vector(self, values: torch.Tensor | None, length: int | None = None) -> int | None:
        """The address of a float32 copy, padded with zeros to `length`."""
        if values is None:
            return None
        kept = torch.zeros(length or len(values))
        kept[: len(values)] = values
        self._kept.append(kept)
        return kept.data_ptr()

    def _table(self, weight: torch.Tensor) -> int:
        kept = self._arena.keep(weight)
        return kept.data_ptr()


def _stacked(linears: Any, stack: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(weight, bias) of several projections of the same input as one."""
    biases = [linear.bias for linear in linears]
    weight = stack([linear.weight for linear in linears])
    return weight, None if biases[0] is None else stack(biases)


def _packed_bytes(model: Any, dtype: Dtype, tied: bool) -> int:
    """Of all that goes to the arena, with room for padding and alignment."""
    size = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
    linears = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    total = sum(round_up(len(w), 64) * round_up(w.shape[1], PAIRED) * size + 64 for w in linears)
    table = _embedding(model)
    return total + (table.nbytes + 64 if table is not None and (not tied or dtype == "int8") else 0)


def _embedding(model: Any) -> torch.Tensor | None:
    """None where `embed_tokens` is: a model that is always given its inputs."""
    return None if model.model.embed_tokens is None else model.model.embed_tokens.weight


def _drop(module: torch.nn.Module) -> None:
    """Free the weights of a module that has been packed."""
    unload(module.parameters())
    for part in module.modules():
        for name in list(part._parameters):
            part._parameters[name] = None
