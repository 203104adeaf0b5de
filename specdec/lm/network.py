"""The seam between sessions (tokens, blocks) and arithmetic (weights, keys, values): what computes a ragged batch, and
where it keeps what attention needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from specdec.lm.ragged import RaggedBatch

BLOCK = 32  # tokens of one KV block


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token's keys and values take: layers x 2 x heads x head_dim elements of `dtype`."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.head_dim * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.layers} layers x 2 x {self.heads} heads x {self.head_dim} of {dtype}"


class KVStorage(Protocol):
    """Keys and values of `num_blocks` blocks, all layers. Row r is slot r % BLOCK of block r // BLOCK."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def layout(self) -> str:
        """How the bytes of a block are to be read: storages of one layout may exchange blocks."""

    @property
    def block_bytes(self) -> int:
        """Of one block, all layers."""

    def read_block(self, block: int, out: NDArray[np.uint8]) -> None:
        """Copies its bytes to `out`, uint8[block_bytes]."""

    def write_block(self, block: int, content: NDArray[np.uint8]) -> None:
        """What `read_block` of a storage of this layout gave."""

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows, as if all were read before the first is written."""

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero whole blocks: a masked row is multiplied by 0, which must not meet a NaN of whoever had it before."""


class Network(Protocol):
    """A decoder with its weights. Driven by one thread, blocking."""

    @property
    def kv_shape(self) -> KVShape: ...

    def new_storage(self, num_blocks: int) -> KVStorage: ...

    def forward(
        self, batch: RaggedBatch, storage: KVStorage, layers: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of the batch's rows. Returns the logits of its wanted rows,
        float32[wanted, padded vocabulary], raw; and the hidden states of its tapped rows after so many layers,
        float32[tapped, len(layers), hidden], before any norm."""


class Attention(Protocol):
    """Attention of one forward, whatever its layout; layers hand it their rows in order."""

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """query: [total, heads, D], key and value: [total, kv_heads, D], rope applied. Writes key and value into the
        storage and returns [total, heads * D]."""
