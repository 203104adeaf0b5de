"""Weights in the order in which the C reads them, each once, from one end to the other."""

from __future__ import annotations

import mmap

import torch

LANES = 16  # outputs of a panel
PAIRED = 32  # inputs are padded to a multiple of this


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def pack(weight: torch.Tensor, tiles: bool) -> torch.Tensor:
    """weight: [n, k], float32, bfloat16 or int8. Returns it padded with zeros to [n / 16, k, 16] elements, or, for
    tiles, to [n / 16, k / 32, 16 pairs, 16, 2]."""
    n, k = weight.shape
    wide, deep = round_up(n, LANES), round_up(k, PAIRED)
    if (wide, deep) != (n, k):
        weight = torch.nn.functional.pad(weight, (0, deep - k, 0, wide - n))
    if tiles:
        return weight.view(wide // LANES, LANES, deep // PAIRED, LANES, 2).permute(0, 2, 3, 1, 4)
    return weight.view(wide // LANES, LANES, deep).permute(0, 2, 1)


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """[2n, k] of two [n, k] (or [2n] of two [n]): 16 rows of gate, the same 16 of up, and so on; n padded to 16."""
    missing = round_up(len(gate), LANES) - len(gate)
    both = [torch.cat([w, w.new_zeros(missing, *w.shape[1:])]) if missing else w for w in (gate, up)]
    parts = [w.view(-1, LANES, *w.shape[1:]) for w in both]
    return torch.stack(parts, dim=1).reshape(-1, *gate.shape[1:])


class Arena:
    """One block of memory that packed weights are laid into, on huge pages where the system has them: reading a
    gigabyte a step through small pages costs a tenth of the bandwidth."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, round_up(max(nbytes, 1), mmap.PAGESIZE))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._free = torch.frombuffer(self._map, dtype=torch.uint8)

    def empty(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """`numel` zeros of `dtype`, 64-byte aligned."""
        taken = round_up(numel * dtype.itemsize, 64)
        part, self._free = self._free[: numel * dtype.itemsize], self._free[taken:]
        assert part.numel() == numel * dtype.itemsize, "the arena is too small"
        return part.view(dtype)

    def keep(self, packed: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of `packed` in the arena."""
        return self.empty(packed.numel(), packed.dtype).view(packed.shape).copy_(packed)
