"""What a drafter answers: a tree and, for sampled drafts, the law each token was really drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specdec.core.tree import EMPTY_TREE, DraftTree, Ids


class DraftKind(IntEnum):
    """Values equal those of the wire enum."""

    CHOSEN = 1  # deterministic or coupled: y-form
    SAMPLED = 2  # independent draws from q
    SAMPLED_WITHOUT_REPLACEMENT = 3  # siblings in drawing order, base q


@dataclass(frozen=True)
class DraftLaw:
    """A draft law on its support. ids: uint32[m], distinct; weights: float16[m] as they travel."""

    ids: Ids
    weights: NDArray[np.float16]

    @cached_property
    def q(self) -> NDArray[np.float64]:
        """float64[m], summing to 1: *the* law, formed the same way by drafter and coordinator
        (algorithms.md, section 5)."""
        w = self.weights.astype(np.float64)
        w /= w.sum()
        return w


@dataclass(frozen=True)
class Draft:
    """laws: one per inner node of the tree, in node order; empty for CHOSEN drafts. score: accepted tokens that
    the drafter itself expects, 0 if it does not know. coupled: CHOSEN with the target's own noise (algorithms.md,
    section 6): its acceptance can only be counted, p(x) does not measure it."""

    tree: DraftTree
    kind: DraftKind = DraftKind.CHOSEN
    laws: tuple[DraftLaw, ...] = ()
    drafter: str = ""
    score: float = 0.0
    coupled: bool = False


NO_DRAFT = Draft(EMPTY_TREE)
