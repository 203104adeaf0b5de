"""Hidden states as they travel: rounded to int8, which costs a drafter next to nothing and the law nothing at all.

A row is one position: per layer its scale, float32 little-endian, then `size` values int8; a value is scale times its
int8. The largest value of a layer becomes 127, so no value is off by more than half of its layer's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.errors import InvalidArgument
from specdec.core.features import row_bytes

_LARGEST = 127


def encode(hidden: torch.Tensor) -> bytes:
    """hidden: [n, layers, size], on any device. What is not finite is sent as a layer of zeros."""
    n, layers, size = hidden.shape
    wide = hidden.to(torch.float32).cpu().numpy()
    blocks = np.zeros((n, layers), _block(size))
    scales = np.abs(wide).max(-1, initial=0.0) / np.float32(_LARGEST)
    sound = np.isfinite(scales) & (scales > 0)
    if not sound.all():
        wide, scales = np.where(sound[..., None], wide, 0.0), np.where(sound, scales, np.float32(1.0))
    blocks["values"] = np.rint(wide / scales[..., None]).clip(-_LARGEST, _LARGEST)
    blocks["scale"] = np.where(sound, scales, 0.0)
    return blocks.tobytes()


def decode(data: bytes, layers: int, size: int) -> NDArray[np.float32]:
    """float32[n, layers, size]. Raises InvalidArgument for rows of another size and for scales that are none."""
    rows, rest = divmod(len(data), row_bytes(layers, size))
    if rest:
        problem = f"rows of {layers} layers of width {size} take {row_bytes(layers, size)} bytes each"
        raise InvalidArgument("features", f"{len(data)} bytes", problem)
    blocks = np.frombuffer(data, _block(size)).reshape(rows, layers)
    scales = blocks["scale"].astype(np.float32)
    if not (np.isfinite(scales) & (scales >= 0)).all():
        raise InvalidArgument("features", float(scales.min()), "a scale must be finite and not negative")
    hidden: NDArray[np.float32] = blocks["values"] * scales[:, :, None]
    return hidden


def _block(size: int) -> np.dtype[Any]:
    """Of one layer of one row."""
    block = np.dtype([("scale", "<f4"), ("values", "i1", (size,))])
    assert block.itemsize == row_bytes(1, size), "a scale and its values, packed"
    return block
