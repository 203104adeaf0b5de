"""A ragged forward as padded grids, so that few shapes serve all batches: a GPU wants one large kernel call per layer,
and a captured graph wants the very same shapes again.

A grid is [segments, rows] query cells over `blocks` whole KV blocks. What a cell sees is a prefix of its sequence's
rows (`limit`), plus, in the last `tail` columns of a draft tree, its ancestors bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec.lm.network import BLOCK
from specdec.lm.ragged import Placed, RaggedBatch
from specdec.lm.staging import Fields

_GATHER = 8  # to fetch one column costs about as much as eight query rows over it
_FEWEST_BLOCKS = 4  # shorter contexts share one shape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GridShape:
    """Sizes of a grid, see the module."""

    segments: int
    rows: int
    blocks: int
    tail: int

    @property
    def columns(self) -> int:
        return self.blocks * BLOCK

    def padded(self) -> GridShape:
        blocks = max(_FEWEST_BLOCKS, _three_quarters_or_power(self.blocks))
        tail = max(8, _power(self.tail)) if self.tail else 0
        return GridShape(_power(self.segments), _power(self.rows), blocks, tail)


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """Everything that decides the shapes of one forward. total: packed rows; wanted: rows whose logits are wanted;
    tapped: rows whose hidden states after `layers` are. inputs: whether vectors take the place of ids."""

    total: int
    wanted: int
    grids: tuple[GridShape, ...]
    tapped: int = 0
    layers: tuple[int, ...] = ()
    inputs: bool = False

    def padded(self) -> ForwardShape:
        """The bucket: the same or larger sizes, of which there are few."""
        tapped = _power(self.tapped) if self.tapped else 0
        grids = tuple(g.padded() for g in self.grids)
        return ForwardShape(_power(self.total), _power(self.wanted), grids, tapped, self.layers, self.inputs)

    def fields(self) -> Fields:
        """Name -> (shape, numpy type) of every input array of a forward of this shape."""
        out: Fields = dict.fromkeys(("input_ids", "position_ids", "write_rows", "cells"), ((self.total,), np.int64))
        out["wanted_rows"] = ((self.wanted,), np.int64)
        out["tapped_rows"] = ((self.tapped,), np.int64)
        for i, g in enumerate(self.grids):
            out[f"{i}.query_rows"] = out[f"{i}.limit"] = ((g.segments, g.rows), np.int64)
            out[f"{i}.blocks"] = ((g.segments, g.blocks), np.int64)
            out[f"{i}.tail_start"] = ((g.segments,), np.int64)
            out[f"{i}.tail_positions"] = ((g.segments, g.tail), np.int64)
            out[f"{i}.tail"] = ((g.segments, g.rows, g.tail), np.bool_)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """What one segment's rows see. limit: int64[rows], leading columns; tail: bool[rows, t], columns from tail_start
    on, where some row sees more than its prefix."""

    placed: Placed
    limit: NDArray[np.int64]
    tail_start: int
    tail: NDArray[np.bool_]

    @staticmethod
    def of(placed: Placed) -> _Member:
        start, end, visible = placed.start, placed.end, placed.visible
        # A last row as deep as it is late has all others before it: context, or a chain. No need to look at each bit.
        if visible is None or placed.positions[end - 1] == end - 1:
            return _Member(placed, np.arange(start + 1, end + 1), end, np.zeros((end - start, 0), dtype=np.bool_))
        lead = np.where(visible.all(1), visible.shape[1], visible.argmin(1))
        beyond = visible.sum(1) > lead
        first = int(lead[beyond].min()) if beyond.any() else visible.shape[1]
        return _Member(placed, placed.base + lead, placed.base + first, visible[:, first:])


class GridLayout:
    """A batch in one grid, or in two where that saves more than half: long prefill chunks beside one-row sessions,
    or a long context beside short ones, would otherwise make every segment as large as the largest."""

    def __init__(self, batch: RaggedBatch, layers: tuple[int, ...] = ()) -> None:
        """layers: those whose hidden states are wanted of the tapped rows."""
        self._batch = batch
        self._layers = layers
        self._tapped_rows = batch.tapped_rows if layers else batch.tapped_rows[:0]
        members = [_Member.of(p) for p in batch.placed]
        self._grids = [[members[i] for i in group] for group in _groups(batch.placed)]

    @property
    def shape(self) -> ForwardShape:
        """As the batch is, nothing padded but the grids."""
        return ForwardShape(
            total=len(self._batch.input_ids),
            wanted=len(self._batch.wanted_rows),
            grids=tuple(
                GridShape(
                    segments=len(grid),
                    rows=max(len(m.limit) for m in grid),
                    blocks=max(len(m.placed.blocks) for m in grid),
                    tail=max(m.tail.shape[1] for m in grid),
                )
                for grid in self._grids
            ),
            tapped=len(self._tapped_rows),
            layers=self._layers,
            inputs=self._batch.inputs is not None,
        )

    def fill(self, arrays: Mapping[str, NDArray[Any]], shape: ForwardShape, scratch: int) -> None:
        """Write every array of `shape.fields()`, where `shape` is at least as large as the batch.

        scratch: a KV block that takes the keys and values of padding rows. No real row ever reads it: columns beyond
        a table point at the sequence's own first block, so that a NaN of one sequence stays with that sequence."""
        batch, total, wanted = self._batch, len(self._batch.input_ids), len(self._batch.wanted_rows)
        for name in ("input_ids", "position_ids", "cells", "wanted_rows", "tapped_rows"):
            arrays[name].fill(0)
        arrays["input_ids"][:total] = batch.input_ids
        arrays["position_ids"][:total] = batch.position_ids
        arrays["wanted_rows"][:wanted] = batch.wanted_rows
        arrays["tapped_rows"][: len(self._tapped_rows)] = self._tapped_rows
        arrays["write_rows"][:total] = batch.write_rows
        arrays["write_rows"][total:] = scratch * BLOCK + np.arange(shape.total - total) % BLOCK
        first_cell = 0
        for i, (members, grid) in enumerate(zip(self._grids, shape.grids, strict=True)):
            _fill_grid(fields_of(arrays, i), members, scratch)
            for s, m in enumerate(members):
                begin = first_cell + s * grid.rows
                arrays["cells"][m.placed.first : m.placed.last] = np.arange(begin, begin + len(m.limit))
            first_cell += grid.segments * grid.rows


def fields_of(fields: Mapping[str, T], grid: int) -> dict[str, T]:
    """The fields of one grid, by their names without its number."""
    prefix = f"{grid}."
    return {name.removeprefix(prefix): field for name, field in fields.items() if name.startswith(prefix)}


def _fill_grid(arrays: Mapping[str, NDArray[Any]], members: list[_Member], scratch: int) -> None:
    for name in ("query_rows", "tail_start", "tail_positions", "tail"):
        arrays[name].fill(0)
    arrays["limit"].fill(1)  # a cell that sees nothing would be NaN
    arrays["blocks"].fill(scratch)
    for s, m in enumerate(members):
        placed, rows, width = m.placed, len(m.limit), m.tail.shape[1]
        arrays["query_rows"][s, :rows] = np.arange(placed.first, placed.last)
        arrays["limit"][s, :rows] = m.limit
        arrays["blocks"][s] = placed.blocks[0]
        arrays["blocks"][s, : len(placed.blocks)] = placed.blocks
        if width:
            arrays["tail_start"][s] = m.tail_start
            arrays["tail_positions"][s, :width] = placed.positions[m.tail_start :]
            arrays["tail"][s, :rows, :width] = m.tail


def _groups(placed: list[Placed]) -> list[list[int]]:
    """Indices of the segments of each grid: one, or two cut where the padded work is least, in order of rows, then of
    context."""
    everything = list(range(len(placed)))
    order = sorted(everything, key=lambda i: (placed[i].last - placed[i].first, placed[i].end))
    rows = np.array([placed[i].last - placed[i].first for i in order]) + _GATHER
    blocks = np.array([len(placed[i].blocks) for i in order])
    count = np.arange(1, len(order) + 1)
    below = count * rows * np.maximum.accumulate(blocks)
    above = (count * rows[-1] * np.maximum.accumulate(blocks[::-1]))[::-1]
    split = below[:-1] + above[1:]
    if not len(split) or 2 * split.min() >= above[0]:
        return [everything]
    cut = int(split.argmin()) + 1
    return [order[:cut], order[cut:]]


def _power(n: int) -> int:
    """The least power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def _three_quarters_or_power(n: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least n."""
    power = _power(n)
    return 3 * power // 4 if power >= 4 and n <= 3 * power // 4 else power
