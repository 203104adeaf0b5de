"""Keys and values in the layout that the C attends over."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.lm.native.library import library
from specdec.lm.native.packing import Arena, round_up
from specdec.lm.native.structs import Model
from specdec.lm.network import BLOCK, KVShape


class NativeKV:
    """One contiguous piece of memory per block, all layers together. Pages are taken from the system when first
    written."""

    def __init__(self, model: Model, shape: KVShape, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._model, self._shape = model, shape
        elements = shape.layers * 2 * shape.heads * round_up(shape.head_dim, 32) * BLOCK
        self.block_bytes = elements * shape.dtype.itemsize
        self.layout = f"native{', tiles' if model.amx else ''}, {shape}"
        size = num_blocks * self.block_bytes
        self._data = Arena(size).empty(size, torch.uint8).view(num_blocks, -1)

    @property
    def address(self) -> int:
        return self._data.data_ptr()

    def read_block(self, block: int, out: NDArray[np.uint8]) -> None:
        out[:] = self._data[block].numpy()

    def write_block(self, block: int, content: NDArray[np.uint8]) -> None:
        self._data[block].numpy()[:] = content

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        self.write(targets, self.read(sources))

    def clear(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._data[block] = 0

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(rows), layers, 2, kv_heads, head_dim]: keys at index 0 of the third axis."""
        shape = self._shape
        content = np.empty((len(rows), shape.layers, 2, shape.heads, shape.head_dim), dtype=np.float32)
        self._copy(rows, content, writing=False)
        return content

    def write(self, rows: NDArray[np.int64], content: NDArray[np.float32]) -> None:
        """What `read` returns, rounded to what is held."""
        self._copy(rows, content, writing=True)

    def _copy(self, rows: NDArray[np.int64], content: NDArray[np.float32], *, writing: bool) -> None:
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        assert not len(rows) or (rows.min() >= 0 and rows.max() < self.num_blocks * BLOCK), "no such row"
        model = ctypes.addressof(self._model)
        library().specdec_kv_rows(model, self.address, rows.ctypes.data, len(rows), content.ctypes.data, int(writing))
