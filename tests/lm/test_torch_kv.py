from __future__ import annotations

import numpy as np
import torch

from specdec.lm.network import BLOCK, KVShape
from specdec.lm.torch_kv import TorchKV

SHAPE = KVShape(layers=2, heads=3, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def storage() -> TorchKV:
    kv = TorchKV(SHAPE, 3)
    kv.data.copy_(torch.randn(kv.data.shape, generator=torch.Generator().manual_seed(0)))
    return kv


def test_its_size_is_what_the_shape_says() -> None:
    assert storage().data.nbytes == 3 * BLOCK * SHAPE.bytes_per_token


def test_rows_move_as_if_all_were_read_first() -> None:
    kv = storage()
    before = kv.data.clone()
    kv.move(np.array([1, 2, 70]), np.array([2, 70, 1]))
    expected = before.clone()
    expected[:, :, :, [2, 70, 1]] = before[:, :, :, [1, 2, 70]]
    assert torch.equal(kv.data, expected)


def test_clearing_a_block_zeroes_it_and_no_other() -> None:
    kv = storage()
    kv.data[:, :, :, 2 * BLOCK + 5] = torch.nan
    before = kv.data.clone()
    kv.clear([2, 0])
    assert not kv.data[:, :, :, :BLOCK].any() and not kv.data[:, :, :, 2 * BLOCK :].any()
    assert torch.equal(kv.data[:, :, :, BLOCK : 2 * BLOCK], before[:, :, :, BLOCK : 2 * BLOCK])
