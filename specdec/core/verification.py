"""What a verifier answers: the target's laws at every node of a draft tree, in the form that was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from specdec.core.tree import Ids

NO_OUTSIDE = 0xFFFFFFFF  # the outside sample of a law that has no mass outside its support


class VerifyForm(IntEnum):
    """Values equal those of the wire enum."""

    Y = 1
    PQ = 2
    TYPICAL = 3


@dataclass(frozen=True)
class TargetLaw:
    """The target law at one inner node, as far as the draft needs it (algorithms.md, section 5).

    ids: uint32[m], the draft law's support, in its order; p: float32[m]; tail: the mass outside, summed."""

    ids: Ids
    p: NDArray[np.float32]
    tail: float


@dataclass(frozen=True)
class Logprobs:
    """Raw log-probabilities of everything that could be emitted: `drawn` float32[nodes] for y (form Y) or the outside
    samples (form PQ); `support`, one float32 array per inner node (form PQ). top_ids uint32[nodes, L], top
    float32[nodes, L]."""

    drawn: NDArray[np.float32]
    support: tuple[NDArray[np.float32], ...]
    top_ids: NDArray[np.uint32]
    top: NDArray[np.float32]


@dataclass(frozen=True)
class Verification:
    """drawn: uint32[nodes]. Form Y: y, drawn from p with the TARGET noise. Form PQ: the outside sample z, a draw from
    p restricted to the outside of the node's support (a leaf's support is empty: a draw from p), NO_OUTSIDE where
    the tail is 0.
    laws (PQ): one per inner node, in node order. child_p (Y, if wanted; TYPICAL): float32[draft tokens], p of each
    draft token under its parent's law. entropies (TYPICAL): float32[nodes], of each node's law, in nats; y as in form
    Y."""

    form: VerifyForm
    drawn: Ids
    laws: tuple[TargetLaw, ...] = ()
    child_p: NDArray[np.float32] | None = None
    logprobs: Logprobs | None = None
    entropies: NDArray[np.float32] | None = None
