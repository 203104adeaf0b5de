"""How far a head has come with one job: which rows it computes next, from which features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draft_service.drafters.feature_sequence import FeatureSequence
from draft_service.drafters.growth import Growth
from specdec.core.tree import Ids

_NO_IDS: Ids = np.zeros(0, dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows to compute in one forward: context rows, or tree rows with their parents (as `Segment` has them). g: float32
    [rows, H], the feature of each or its estimate. wanted: whether the logits of the last `leaves` rows are."""

    token_ids: Ids
    tree_ids: Ids
    tree_parents: NDArray[np.int64]
    g: torch.Tensor
    leaves: int
    wanted: bool

    @property
    def ids(self) -> Ids:
        """uint32[rows]: the token behind each feature."""
        return np.concatenate([self.token_ids, self.tree_ids])

    def __len__(self) -> int:
        return len(self.token_ids) + len(self.tree_ids)


class Progress:
    """A job on its way: first the context rows whose features are known, then the trunk, known tokens whose features
    are not and are estimated one by one, then the growth's frontier, level by level."""

    def __init__(self, growth: Growth, sequence: FeatureSequence, known: Ids, trunk: Ids, g: torch.Tensor) -> None:
        """known: uint32[n], tokens behind features not computed yet, at least one; g: float32[n, H], these features.
        trunk: uint32[m], the context's tokens after them."""
        assert len(known) == len(g) > 0, "one token behind each feature"
        self.growth = growth
        self.sequence = sequence
        self.begun = False
        self._known = known
        self._trunk = trunk
        self._g = g  # of the rows to come; behind the known ones, the newest estimate
        self._trunk_done = 0
        self._estimates: dict[int, torch.Tensor] = {}  # by node of the growth: float32[H]
        self._places: dict[int, int] = {}  # node of the growth -> node of the sequence's tree

    @property
    def max_rows(self) -> int:
        """Rows of the sequence in all when the draft is done."""
        return self.sequence.rows.num_context + len(self._known) + len(self._trunk) + self.growth.max_rows

    @property
    def num_pending(self) -> int:
        if len(self._known):
            return len(self._known)
        return 1 if self._trunk_done < len(self._trunk) else len(self.growth.frontier)

    def pending(self) -> Rows:
        """What is to be computed next."""
        last_known = self._trunk_done == len(self._trunk)
        if len(self._known):
            return Rows(self._known, _NO_IDS, np.zeros(0, dtype=np.int64), self._g, 1, last_known)
        if not last_known:
            at, parent = self._trunk_done, np.array([self._trunk_done])
            return Rows(_NO_IDS, self._trunk[at : at + 1], parent, self._g, 1, at + 1 == len(self._trunk))
        growth = self.growth
        parents = [growth.parents[node - 1] for node in growth.frontier]
        tokens = np.array([growth.tokens[node - 1] for node in growth.frontier], dtype=np.uint32)
        g = torch.stack([self._estimates[parent] for parent in parents])
        return Rows(_NO_IDS, tokens, np.array([self._places[parent] for parent in parents]), g, len(tokens), True)

    def computed(self, hidden: torch.Tensor) -> None:
        """Count the pending rows as computed. hidden: float32[leaves, H], the features that they estimate."""
        self.begun = True
        if len(self._known):
            self._known = _NO_IDS
        elif self._trunk_done < len(self._trunk):
            self._trunk_done += 1
        else:
            tree = len(self.sequence.rows.tree_ids)
            for place, (node, row) in enumerate(zip(self.growth.frontier, hidden, strict=True), tree + 1 - len(hidden)):
                self._estimates[node], self._places[node] = row, place
            return
        self._g = hidden
        self._estimates[0], self._places[0] = hidden[-1], len(self._trunk)
