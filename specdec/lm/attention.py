"""Attention of one ragged forward over a `TorchKV`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention

from specdec.lm.network import BLOCK
from specdec.lm.ragged import Placed, RaggedBatch, Visible
from specdec.lm.torch_kv import TorchKV

_FOLDED = 32  # rows of a segment up to which its query group is folded


class RaggedAttention:
    """One forward's attention, segment by segment, in one call each: scores never lie in memory, softmax in float32.
    The query group of each KV head is folded into rows, [kv_heads, group x rows, D], so that keys and values are read
    once for all of it; a segment of many rows reads them often anyway and is not folded, to keep its mask small. Where
    the blocks of a segment are consecutive its keys and values are views of the storage, else they are gathered."""

    def __init__(
        self, batch: RaggedBatch, storage: TorchKV, windows: Sequence[int | None] = (), scaling: float = 1.0
    ) -> None:
        """windows: per layer, the positions that a row sees, itself included; None: all."""
        self._batch = batch
        self._storage = storage
        self._windows = windows
        self._scaling = scaling
        self._device = storage.data.device
        self._write = torch.from_numpy(batch.write_rows).to(self._device)
        self._places = [(p, *_rows(p, self._device)) for p in batch.placed]
        self._masks: dict[int | None, list[torch.Tensor | None]] = {}

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """query: [total, heads, D], key and value: [total, kv_heads, D], rope applied. Returns [total, heads * D]."""
        return self.attend(layer, query, key, value, self._windows[layer], self._scaling)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
        scaling: float,
    ) -> torch.Tensor:
        """The same, for callers whose layers bring their own window and scaling."""
        total, heads, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        keys, values = self._storage.data[layer].unbind()
        keys.index_copy_(1, self._write, key.transpose(0, 1))
        values.index_copy_(1, self._write, value.transpose(0, 1))
        query = query.transpose(0, 1)
        parts = []
        for (placed, rows, index), mask in zip(self._places, self._masks_of(window, group), strict=True):
            held_keys, held_values = _take(keys, rows, index)[:, None], _take(values, rows, index)[:, None]
            own = query[:, placed.first : placed.last]
            if _is_folded(placed):
                own = own.reshape(kv_heads, 1, -1, dim)
            else:
                own = own.view(kv_heads, group, -1, dim)
                held_keys, held_values = (x.expand(-1, group, -1, -1) for x in (held_keys, held_values))
            mixed = scaled_dot_product_attention(own, held_keys, held_values, attn_mask=mask, scale=scaling)
            parts.append(mixed.reshape(heads, -1, dim))
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return whole.transpose(0, 1).reshape(total, heads * dim)

    def _masks_of(self, window: int | None, group: int) -> list[torch.Tensor | None]:
        """Per segment, built once per forward."""
        if window not in self._masks:
            dtype = self._storage.data.dtype
            pairs = zip(self._batch.placed, self._batch.visible(window), strict=True)
            self._masks[window] = [_mask(p, v, group, dtype, self._device) for p, v in pairs]
        return self._masks[window]


def _is_folded(placed: Placed) -> bool:
    return placed.last - placed.first <= _FOLDED


def _rows(placed: Placed, device: torch.device) -> tuple[slice, torch.Tensor | None]:
    """Where the segment's rows are in the storage: a slice of it; or, when its blocks are scattered, a slice of what is
    gathered and the blocks to gather."""
    blocks: NDArray[np.int64] = placed.blocks.astype(np.int64)
    if (np.diff(blocks) == 1).all():
        first = int(blocks[0]) * BLOCK
        return slice(first, first + placed.end), None
    return slice(0, placed.end), torch.from_numpy(blocks).to(device)


def _take(data: torch.Tensor, rows: slice, index: torch.Tensor | None) -> torch.Tensor:
    """data: [kv_heads, rows, D] of the whole storage. Returns the segment's."""
    if index is not None:
        heads, _, dim = data.shape
        data = data.view(heads, -1, BLOCK * dim).index_select(1, index).view(heads, -1, dim)
    return data[:, rows]


def _mask(
    placed: Placed, visible: Visible, group: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """Additive: [rows, columns], or [group x rows, columns] where the query group is folded into rows."""
    if visible is None:
        return None
    base, sees = visible
    mask = torch.zeros((len(sees), placed.end), dtype=dtype)
    mask[:, base:].masked_fill_(torch.from_numpy(~sees), -torch.inf)
    return (mask.repeat(group, 1) if _is_folded(placed) else mask).to(device)
