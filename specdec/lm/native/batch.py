"""A `RaggedBatch` as the C reads it, and the buffers a forward works in."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.lm.native import structs
from specdec.lm.native.packing import round_up
from specdec.lm.native.storage import NativeKV
from specdec.lm.network import BLOCK
from specdec.lm.ragged import Placed, RaggedBatch

_FOLDED = 16  # rows of an attention work item, as in attention.h
_WORTH_A_THREAD = 1 << 18  # multiplications; with fewer, a thread more costs about what it saves


class Workspace:
    """Buffers that grow to the largest forward seen."""

    def __init__(self, model: structs.Model) -> None:
        self._model = model
        self._rows = self._columns = self._threads = 0
        self._row_work: int = sum(linear.n * linear.k for linear in _linears(model))
        self._column_work = 2 * model.layers * model.heads * model.head_dim

    def threads(self, rows: int, columns: int) -> int:
        """How many a forward of so many rows, over so many columns each, has work for."""
        work: int = rows * (self._row_work + columns * self._column_work)
        return min(torch.get_num_threads(), 1 + work // _WORTH_A_THREAD)

    def fit(self, rows: int, columns: int, threads: int) -> None:
        """rows: of the forward; columns: of its longest sequence."""
        if rows > self._rows:
            self._rows = round_up(rows, 16)
            self._allocate(self._rows)
        if columns > self._columns or threads > self._threads:
            self._columns, self._threads = round_up(max(columns, self._columns), 8 * BLOCK), threads
            self.scratch_bytes = _FOLDED * self._columns * 8
            self.scratch = torch.empty(threads * self.scratch_bytes, dtype=torch.uint8)

    def taps(self, layers: tuple[int, ...]) -> NDArray[np.int64]:
        """`Batch.tap` of the C."""
        tap = np.full(self._model.layers + 1, -1)
        tap[list(layers)] = np.arange(len(layers))
        return tap

    def _allocate(self, rows: int) -> None:
        """Inputs of linears begin as zeros: their padding is never written."""
        m = self._model
        first = structs.Layer.from_address(m.layer)
        narrow = torch.bfloat16 if m.amx else torch.float32
        self.x = torch.empty(rows * m.hidden)
        self.qkv = torch.empty(rows * first.qkv.n)
        self.a = torch.zeros(rows * first.qkv.k, dtype=narrow)
        self.mixed = torch.zeros(rows * first.out.k, dtype=narrow)
        self.inner = torch.zeros(rows * first.down.k, dtype=narrow)


def _linears(model: structs.Model) -> Iterator[structs.Linear]:
    for layer in (structs.Layer * model.layers).from_address(model.layer):
        yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
    yield model.head


@contextmanager
def filled(
    batch: RaggedBatch,
    workspace: Workspace,
    storage: NativeKV,
    window: int | None,
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    layers: tuple[int, ...],
    logits: torch.Tensor,
    hidden: torch.Tensor,
) -> Iterator[structs.Batch]:
    """The C `Batch`; what it points to lives as long as the context."""
    placed = batch.placed
    columns = round_up(max(p.end for p in placed), BLOCK)
    threads = workspace.threads(batch.total, columns)
    workspace.fit(batch.total, columns, threads)
    segments = (structs.Segment * len(placed))()
    kept: list[object] = [_segment(segments[i], p) for i, p in enumerate(placed)]
    if window is not None:
        kept += [_window(segments[i], batch, i, window) for i in range(len(placed))]
    rows = (batch.input_ids, batch.write_rows, batch.wanted_rows, batch.tapped_rows)
    ids, write_rows, wanted_rows, tapped_rows = (np.ascontiguousarray(a, dtype=np.int64) for a in rows)
    inputs = None if batch.inputs is None else batch.inputs.to("cpu", torch.float32).contiguous()
    tap = workspace.taps(layers)
    cos, sin = (np.ascontiguousarray(table, dtype=np.float32) for table in (cos, sin))
    yield structs.Batch(
        batch.total,
        len(placed),
        len(batch.wanted_rows),
        ids.ctypes.data,
        write_rows.ctypes.data,
        wanted_rows.ctypes.data,
        None if inputs is None else inputs.data_ptr(),
        len(tapped_rows),
        len(layers),
        tapped_rows.ctypes.data,
        tap.ctypes.data,
        cos.ctypes.data,
        sin.ctypes.data,
        ctypes.addressof(segments),
        storage.address,
        logits.data_ptr(),
        hidden.data_ptr(),
        workspace.x.data_ptr(),
        workspace.qkv.data_ptr(),
        workspace.a.data_ptr(),
        workspace.mixed.data_ptr(),
        workspace.inner.data_ptr(),
        workspace.scratch.data_ptr(),
        workspace.scratch_bytes,
        threads,
    )
    del kept


def _segment(to: structs.Segment, placed: Placed) -> list[NDArray[np.generic]]:
    blocks = np.ascontiguousarray(placed.blocks, dtype=np.int32)
    to.first, to.rows, to.start, to.base = placed.first, placed.last - placed.first, placed.start, placed.base
    to.blocks = blocks.ctypes.data
    if placed.visible is None or _in_order(placed):
        return [blocks]
    visible = np.ascontiguousarray(placed.visible)
    to.visible = visible.ctypes.data
    return [blocks, visible]


def _in_order(placed: Placed) -> bool:
    """Whether every row stands at its own position: context, or a chain, which sees all before it."""
    return bool((placed.positions[placed.start :] == np.arange(placed.start, placed.end)).all()) and bool(
        (placed.positions[placed.base : placed.start] == np.arange(placed.base, placed.start)).all()
    )


def _window(to: structs.Segment, batch: RaggedBatch, index: int, window: int) -> NDArray[np.bool_] | None:
    """What a layer with a sliding window sees, where that is less."""
    if batch.placed[index].positions.max() < window:
        return None
    seen = batch.visible(window)[index]
    if seen is None:
        return None
    to.window_base, visible = seen
    visible = np.ascontiguousarray(visible)
    to.window_visible = visible.ctypes.data
    return visible
