"""Attention of one forward over padded grids: no Python per segment, static shapes, one attention call a layer and
grid. The layout for a GPU; `RaggedAttention` is its oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from specdec.lm.grids import ForwardShape, GridShape, fields_of
from specdec.lm.network import BLOCK

_MOST_MASK = 1 << 25  # elements of one mask: 64 MiB in bfloat16


class PaddedAttention:
    """`Attention` over the rows that `inputs` describe (`GridLayout.fill`, on the device of `data`)."""

    def __init__(
        self,
        shape: ForwardShape,
        inputs: Mapping[str, torch.Tensor],
        data: torch.Tensor,
        windows: Sequence[int | None],
        scaling: float,
        most_mask: int = _MOST_MASK,
    ) -> None:
        """data: [layers, 2, kv_heads, rows, D], the storage's. windows: per layer, how many positions a row sees,
        itself included; None: all. most_mask: elements of a mask; a larger one is made in parts, in every layer."""
        self._grids = [_Grid(grid, fields_of(inputs, i), inputs["position_ids"]) for i, grid in enumerate(shape.grids)]
        self._write_rows = inputs["write_rows"]
        self._cells = inputs["cells"]
        self._data = data
        self._windows = windows
        self._scaling = scaling
        self._most_mask = most_mask
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `Attention`."""
        data = self._data[layer]
        data[0].index_copy_(1, self._write_rows, key.transpose(0, 1))
        data[1].index_copy_(1, self._write_rows, value.transpose(0, 1))
        mixed = [self._mixed(i, query, data, self._windows[layer]) for i in range(len(self._grids))]
        cells = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return cells.index_select(0, self._cells)

    def _mixed(self, grid_index: int, query: torch.Tensor, data: torch.Tensor, window: int | None) -> torch.Tensor:
        """[segments * rows, heads * D]: every cell of one grid."""
        grid = self._grids[grid_index]
        _, kv_heads, _, dim = data.shape
        group = query.shape[1] // kv_heads
        segments, rows, columns = grid.shape.segments, grid.shape.rows, grid.shape.columns
        blocks = data.view(2, kv_heads, -1, BLOCK, dim).index_select(2, grid.blocks)
        keys, values = blocks.view(2, kv_heads, segments, columns, dim).transpose(1, 2)
        cells = query.index_select(0, grid.query_rows.view(-1)).view(segments, rows, kv_heads, group, dim)
        folded = cells.permute(0, 2, 3, 1, 4)  # the query group becomes rows, so that keys are read once
        step = max(1, self._most_mask // (segments * group * columns))
        parts = []
        for first in range(0, rows, step):
            last = min(rows, first + step)
            mask = self._mask(grid_index, window, first, last, group, query.dtype)
            part = folded[:, :, :, first:last].reshape(segments, kv_heads, -1, dim)
            part = scaled_dot_product_attention(part, keys, values, attn_mask=mask, scale=self._scaling)
            parts.append(part.view(segments, kv_heads, group, last - first, dim))
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)
        return whole.permute(0, 3, 1, 2, 4).reshape(segments * rows, -1)

    def _mask(
        self, grid_index: int, window: int | None, first: int, last: int, group: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """[segments, 1, group * rows, columns], additive: of cell rows first to last. Kept if it is the whole."""
        found = self._masks.get((grid_index, window))
        if found is not None:
            return found
        grid = self._grids[grid_index]
        seen = grid.visible(window, first, last)
        additive = torch.zeros((), dtype=dtype, device=seen.device).masked_fill(~seen, -torch.inf)
        segments, rows, columns = seen.shape
        mask = additive[:, None, None].expand(-1, -1, group, -1, -1).reshape(segments, 1, group * rows, columns)
        if rows == grid.shape.rows:
            self._masks[grid_index, window] = mask
        return mask


class _Grid:
    """One grid's inputs on the device, see `ForwardShape.fields`."""

    def __init__(self, shape: GridShape, fields: Mapping[str, torch.Tensor], position_ids: torch.Tensor) -> None:
        self.shape = shape
        self.query_rows = fields["query_rows"]
        self.blocks = fields["blocks"].view(-1)
        self._limit = fields["limit"]
        self._tail_start = fields["tail_start"]
        self._tail_positions = fields["tail_positions"]
        self._tail = fields["tail"]
        self._position_ids = position_ids

    def visible(self, window: int | None, first: int, last: int) -> torch.Tensor:
        """bool[segments, last - first, columns]: what cell rows first to last see.

        A prefix that is seen whole is a path from the first token on, so its column c stands at position c; only in
        the tail of a tree do columns and positions differ."""
        columns = torch.arange(self.shape.columns, device=self._limit.device)
        seen = columns < self._limit[:, first:last, None]
        tail = self._tail[:, first:last]
        if window is not None:
            positions = self._position_ids[self.query_rows[:, first:last]]
            seen &= columns > positions[:, :, None] - window
            tail = tail & (self._tail_positions[:, None] > positions[:, :, None] - window)
        if self.shape.tail:
            offset = columns - self._tail_start[:, None]
            inside = (offset >= 0) & (offset < self.shape.tail)
            offset = offset.clamp(0, self.shape.tail - 1)[:, None].expand(seen.shape)
            seen |= tail.gather(2, offset) & inside[:, None]
        return seen
