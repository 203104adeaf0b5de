"""Keys and values as one torch tensor: the storage of every network that computes in torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.lm.network import BLOCK, KVShape


class TorchKV:
    """data: [layers, 2, heads, num_blocks * BLOCK, head_dim], keys at index 0 of the second axis, values at 1. One
    head's rows lie together, so that a sequence whose blocks are consecutive is read without a copy."""

    def __init__(self, shape: KVShape, num_blocks: int, spare: int = 0) -> None:
        """spare: blocks behind the last, for rows that belong to no sequence."""
        self.num_blocks = num_blocks
        self.layout = f"torch, {shape}"
        self.block_bytes = BLOCK * shape.bytes_per_token
        size = (shape.layers, 2, shape.heads, (num_blocks + spare) * BLOCK, shape.head_dim)
        self.data = torch.zeros(size, dtype=shape.dtype, device=shape.device)

    def read_block(self, block: int, out: NDArray[np.uint8]) -> None:
        rows = self._rows_of(block)
        torch.from_numpy(out).view(rows.dtype).view(rows.shape).copy_(rows)

    def write_block(self, block: int, content: NDArray[np.uint8]) -> None:
        rows = self._rows_of(block)
        content = np.require(content, requirements="W")  # torch takes no other, though it only reads
        rows.copy_(torch.from_numpy(content).view(rows.dtype).view(rows.shape))

    def _rows_of(self, block: int) -> torch.Tensor:
        return self.data[:, :, :, block * BLOCK : (block + 1) * BLOCK]

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows of all layers, as if all were read before the first is written."""
        device = self.data.device
        rows = self.data.index_select(3, torch.from_numpy(sources).to(device, non_blocking=True))
        self.data.index_copy_(3, torch.from_numpy(targets).to(device, non_blocking=True), rows)

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero whole blocks."""
        index = torch.tensor(list(blocks), dtype=torch.int64).to(self.data.device, non_blocking=True)
        layers, _, heads, _, dim = self.data.shape
        self.data.view(layers, 2, heads, -1, BLOCK, dim).index_fill_(3, index, 0.0)
