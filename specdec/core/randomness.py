"""Keyed randomness: every random number is a pure function of (seed, place, purpose), so that any process can
draw it again (algorithms.md, section 10). Philox: Salmon et al. 2011, "Parallel random numbers: as easy as 1,
2, 3". SplitMix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from specdec.core.tree import Ids

MAX_PLACE = 1 << 56  # place << 8 | purpose is one 64-bit word of the key


class Purpose(IntEnum):
    """What a stream of numbers is for: the low byte of its key."""

    DRAFT = 1  # number i draws the token of node i
    ACCEPT = 2  # number i judges node i; number 0 draws from the residual
    OUTSIDE = 3  # number i draws the outside sample of node i
    TARGET = 4  # the noise of the y-form, addressable by token
    CHOICE = 5  # the seeds of the further choices of one request


def _philox(seed: int, place: int, purpose: Purpose) -> Philox:
    assert 0 <= seed < 1 << 64, f"seed {seed} is not a 64-bit word"
    assert 0 <= place < MAX_PLACE, f"place {place} does not fit into the key"
    return Philox(key=np.array([seed, place << 8 | purpose], dtype=np.uint64))


def uniforms(seed: int, base: int, purpose: Purpose, n: int) -> NDArray[np.float64]:
    """float64[n] in [0, 1). base: number of committed tokens at the start of the cycle that judges the draft,
    so no two cycles of a turn share numbers. Fewer numbers are a prefix of more."""
    return Generator(_philox(seed, base, purpose)).random(n)


def target_key(seed: int, position: int) -> int:
    """64-bit key of the y-form's noise at `position`, the 0-based index in the context of the token to be
    drawn."""
    return int(_philox(seed, position, Purpose.TARGET).random_raw())


def choice_seed(seed: int, index: int) -> int:
    """Seed of choice `index` of a request with n > 1: choice 0 keeps the request's (contract.md,
    randomness)."""
    return seed if index == 0 else int(_philox(seed, index, Purpose.CHOICE).random_raw())


def target_noise(key: int, ids: Ids) -> NDArray[np.float64]:
    """float64[m], the standard exponentials e(t, v) of the tokens ids: uint32[m]. Token v takes output number
    v of SplitMix64 started at `key`; float64 throughout, because float32 is too coarse where winners lie
    (section 6)."""
    r = ids.astype(np.uint64)
    r += np.uint64(1)
    r *= np.uint64(0x9E3779B97F4A7C15)
    r += np.uint64(key)
    r ^= r >> np.uint64(30)
    r *= np.uint64(0xBF58476D1CE4E5B9)
    r ^= r >> np.uint64(27)
    r *= np.uint64(0x94D049BB133111EB)
    r ^= r >> np.uint64(31)
    w = (r >> np.uint64(11)).astype(np.float64)
    w += 0.5
    w *= 2.0**-53
    exponentials: NDArray[np.float64] = -np.log1p(-w)
    return exponentials


def coupled_choice(ids: Ids, p: NDArray[np.floating], key: int) -> int:
    """Index of the token drawn from the law p (float[m], need not sum to 1) on ids: uint32[m] with the noise
    of `key`: argmin e / p where p > 0, ties to the lowest id. Drafter and target that use the same key draw
    the same token often (algorithms.md, sections 0 and 6; Daliri et al. 2025)."""
    possible = np.flatnonzero(p > 0)
    assert possible.size, "a law without mass has no draw"
    with np.errstate(over="ignore"):  # subnormal p: infinitely late, rightly
        race = target_noise(key, ids[possible]) / p[possible].astype(np.float64)
    winners = possible[race == race.min()]
    return int(winners[np.argmin(ids[winners])])
