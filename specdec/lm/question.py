"""What is asked of the laws of one session's nodes, and the answer: all that services need of a law, without the law
itself, which is as wide as the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids
from specdec.lm.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """logits: float32[n, padded vocabulary] of n nodes, raw. histories, params: what makes laws of them.

    keys: n 64-bit words (`specdec.core.randomness.target_key`): draw y of each node. us: n numbers in [0, 1): draw the
    outside sample of each node. One of the two at most. looks: () or uint32[s] per node, distinct: tokens whose
    probability is wanted; with us they are the node's support. likeliest: how many of the likeliest tokens of each law
    are wanted. confidence: under greedy, y's probability in the softmax of the raw logits is wanted. entropy: that of
    each law is wanted."""

    logits: torch.Tensor
    histories: Histories
    params: SamplingParams
    keys: Sequence[int] | None = None
    us: Sequence[float] | None = None
    looks: Sequence[Ids] = ()
    likeliest: int = 0
    confidence: bool = False
    entropy: bool = False

    def __post_init__(self) -> None:
        nodes = self.logits.shape[0]
        assert len(self.histories.paths) == nodes, "one history per node"
        assert self.keys is None or self.us is None, "one draw per node"
        assert self.keys is None or len(self.keys) == nodes, "one key per node"
        assert self.us is None or len(self.us) == nodes, "one number per node"
        assert not self.looks or len(self.looks) == nodes, "one array of tokens per node"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """drawn: uint32[n], y or the outside sample (NO_OUTSIDE where nothing is outside); zeros if no draw was asked for.
    p: float64[n], y's probability under its law (greedy with `confidence`: under the raw softmax); of no meaning else.
    looked: float64[s] per node. tails: float64[n], the mass outside the support, where outside samples were asked for.
    likeliest: per node uint32[m] ascending and float64[m], m at most what was asked for; () if nothing was. entropies:
    float64[n], in nats; None if not asked for."""

    drawn: Ids
    p: NDArray[np.float64]
    looked: tuple[NDArray[np.float64], ...]
    tails: NDArray[np.float64]
    likeliest: tuple[tuple[Ids, NDArray[np.float64]], ...] = ()
    entropies: NDArray[np.float64] | None = None
