"""Hidden states rounded to int8 per layer and row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.errors import InvalidArgument
from specdec.core.features import FeatureRows, row_bytes
from specdec.lm.features import decode, encode


def states(n: int, layers: int, size: int, seed: int = 0) -> torch.Tensor:
    """Layers of very different scales, as residual streams have."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.arange(-3, layers - 3)
    return torch.randn((n, layers, size), generator=generator) * scales[None, :, None]


@given(n=st.integers(0, 4), layers=st.integers(1, 4), size=st.integers(1, 33), seed=st.integers(0, 99))
def test_no_value_is_off_by_more_than_half_a_step_of_its_own_layer(n: int, layers: int, size: int, seed: int) -> None:
    hidden = states(n, layers, size, seed)
    data = encode(hidden)
    assert len(data) == n * row_bytes(layers, size)
    back = decode(data, layers, size)
    assert back.dtype == np.float32 and back.shape == (n, layers, size)
    bound = np.abs(hidden.numpy()).max(-1, keepdims=True) / 127 / 2 * (1 + 1e-5) if size * n else 0.0
    assert (np.abs(back - hidden.numpy()) <= bound).all()


def test_a_row_does_not_depend_on_its_company_and_lies_at_its_place() -> None:
    hidden = states(5, 3, 16)
    rows = FeatureRows(0, 5, encode(hidden))
    assert [rows.take([i]).data for i in range(5)] == [encode(hidden[i : i + 1]) for i in range(5)]
    assert rows.layers([9, 4], [1, 4, 9]).data == encode(hidden[:, [2, 1]])


def test_bfloat16_is_taken_as_it_is() -> None:
    hidden = states(2, 2, 8).bfloat16()
    assert encode(hidden) == encode(hidden.float())


def test_zeros_and_what_is_not_finite_are_zeros() -> None:
    hidden = states(1, 4, 8)
    hidden[0, 0], hidden[0, 1, 3], hidden[0, 2, 5] = 0.0, torch.nan, torch.inf
    back = decode(encode(hidden), 4, 8)
    assert not back[0, :3].any() and back[0, 3].any()


@pytest.mark.parametrize("wrong", [(1, 16), (3, 16), (2, 15)])
def test_rows_of_another_size_are_refused_by_name(wrong: tuple[int, int]) -> None:
    data = encode(states(1, 2, 16))
    if len(data) % row_bytes(*wrong) == 0:
        data += b"\0"
    with pytest.raises(InvalidArgument, match="features"):
        decode(data, *wrong)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    data = encode(states(2, 1, 4))
    with pytest.raises(InvalidArgument, match="a scale must be finite"):
        decode(np.array([scale], "<f4").tobytes() + data[4:], 1, 4)
