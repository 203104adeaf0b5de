"""Weights in the order in which the C reads them, each once, from one end to the other."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch

from specdec.lm.mapped import unload

LANES = 16  # outputs of a panel
_HUGE_PAGE = 1 << 21
_PIECE = 8192  # rows of a matrix, whole panels
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
        # Private: huge pages of shared memory are another setting, which most systems leave off.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(-1, round_up(max(nbytes, 1), _HUGE_PAGE), flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._free = torch.frombuffer(self._map, dtype=torch.uint8)

    def empty(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """`numel` zeros of `dtype`, 64-byte aligned."""
        taken = round_up(numel * dtype.itemsize, 64)
        part, self._free = self._free[: numel * dtype.itemsize], self._free[taken:]
        assert part.numel() == numel * dtype.itemsize, "the arena is too small"
        return part.view(dtype)

    def keep(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy of a matrix as it is."""
        return self._filled(self.empty(weight.numel(), weight.dtype).view(weight.shape), weight, lambda part: part, 1)

    def pack(self, weight: torch.Tensor, tiles: bool) -> torch.Tensor:
        """`pack` of a matrix."""
        panels = round_up(len(weight), LANES) // LANES
        packed = self.empty(panels * LANES * round_up(weight.shape[1], PAIRED), weight.dtype).view(panels, -1)
        return self._filled(packed, weight, lambda part: pack(part, tiles).flatten(1), LANES)

    def _filled(
        self, to: torch.Tensor, weight: torch.Tensor, layout: Callable[[torch.Tensor], torch.Tensor], rows: int
    ) -> torch.Tensor:
        """rows: of `weight` in each of `to`. Piece by piece: of a matrix in a mapped file, no more than a piece is held
        twice."""
        for first in range(0, len(weight), _PIECE):
            part = weight[first : first + _PIECE]
            to[first // rows : -(-(first + len(part)) // rows)] = layout(part)
            unload([part])
        return to
