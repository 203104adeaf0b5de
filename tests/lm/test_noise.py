from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.core.randomness import target_key
from specdec.core.randomness import target_noise as numpy_noise
from specdec.lm.draw import race
from specdec.lm.noise import target_noise

KEYS = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, target_key(42, 5), target_key((1 << 64) - 1, 10_000)]


def test_noise_equals_the_numpy_version_bit_for_bit() -> None:
    vocab = 20_011  # not a multiple of any vector width
    noise = target_noise(KEYS, torch.arange(vocab))
    for row, key in zip(noise.numpy(), KEYS, strict=True):
        assert row.tobytes() == numpy_noise(key, np.arange(vocab, dtype=np.uint32)).tobytes()


def test_noise_of_some_tokens_is_the_noise_of_all_at_those_tokens() -> None:
    ids = torch.tensor([[0, 7, 49_151], [3, 8, 199_999]])
    noise = target_noise([5, 6], ids)
    every = target_noise([5, 6], torch.arange(200_000))
    assert torch.equal(noise, every.gather(-1, ids))


def test_splitmix_vectors_of_the_design() -> None:
    """algorithms.md, section 10: key 0, token 0 and key_t of (42, 5), token 7."""
    assert target_key(42, 5) == 0xAAD2C877EF9D50F3
    for key, token, word in ((0, 0, 0xE220A8397B1DCDAF), (target_key(42, 5), 7, 0x754C255775CE6AEA)):
        expected = -np.log1p(-((word >> 11) + 0.5) * 2.0**-53)
        assert target_noise([key], torch.tensor([token])).item() == expected


def test_negative_control_arithmetic_shifts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.lm.noise._shifted", lambda words, bits, out: words >> bits)
    ids = np.arange(100, dtype=np.uint32)
    assert not np.array_equal(target_noise([1 << 63], torch.arange(100))[0].numpy(), numpy_noise(1 << 63, ids))


def test_race_in_torch_finds_the_winner_of_the_numpy_race() -> None:
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.full(300, 0.1), size=64)
    p[:, generator.integers(0, 300, 100)] = 0.0
    keys = [target_key(9, t) for t in range(64)]
    winners = race(torch.from_numpy(p), torch.arange(300), keys)
    for row, key, winner in zip(p, keys, winners[:, 0].tolist(), strict=True):
        times = numpy_noise(key, np.arange(300, dtype=np.uint32))[row > 0] / row[row > 0]
        assert winner == np.flatnonzero(row > 0)[times.argmin()]
