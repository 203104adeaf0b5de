"""The y-form's noise in torch, for whole blocks of nodes (algorithms.md, section 10). Same bits as
`specdec.core.randomness.target_noise`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

# The constants of SplitMix64 as signed 64-bit words: torch has no uint64 arithmetic, and wrap-around is the
# same.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def target_noise(keys: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """Standard exponentials e(t, v), float64[n, m], on the device of `ids`.

    keys: n 64-bit words, `specdec.core.randomness.target_key` of each node. ids: int64[m], the same tokens
    for every node, or int64[n, m]."""
    words = torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64)).to(ids.device, non_blocking=True)
    r = words[:, None] + (ids + 1) * _GOLDEN
    scratch = torch.empty_like(r)  # fresh memory costs more than the arithmetic
    r.bitwise_xor_(_shifted(r, 30, scratch)).mul_(_MIX_1)
    r.bitwise_xor_(_shifted(r, 27, scratch)).mul_(_MIX_2)
    r.bitwise_xor_(_shifted(r, 31, scratch))
    w = _shifted(r, 11, scratch).double()
    w.add_(0.5).mul_(-(2.0**-53))
    if w.device.type == "cpu":
        # torch's own log1p differs from numpy's in the last bit of some values.
        np.log1p(w.numpy(), out=w.numpy())
    else:
        w.log1p_()
    return w.neg_()


def _shifted(words: torch.Tensor, bits: int, out: torch.Tensor) -> torch.Tensor:
    """Logical shift to the right: an arithmetic one, the copies of the sign bit cut off."""
    torch.bitwise_right_shift(words, bits, out=out)
    return out.bitwise_and_((1 << (64 - bits)) - 1)
