"""EAGLE-2: an EAGLE head whose draft tree follows its own confidence (Li et al. 2024, "EAGLE-2: faster inference of
language models with dynamic draft trees")."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from draft_service.drafters import DraftJob
from draft_service.drafters.eagle_drafter import EagleDrafter, load_head
from draft_service.drafters.growth import Growth, ranked
from specdec.core.draft import Draft, DraftKind
from specdec.core.tree import DraftTree
from specdec.lm.id_map import IdMap
from specdec.lm.question import Answer

if TYPE_CHECKING:
    from draft_service.config import DraftConfig
    from specdec.edge.telemetry import ReplicaMetrics

NAME = "eagle2"
WIDTH, EXPANSIONS = 10, 7


class DynamicGrowth(Growth):
    """The tree that one head's confidence asks for (Li et al. 2024, "EAGLE-2"; algorithms.md, section 8): in each
    expansion the WIDTH likeliest paths get their WIDTH likeliest children, and in the end the likeliest nodes are kept.

    A node that is already behind as many as may be kept is not expanded: its children would be no likelier, so the
    outcome is the same."""

    max_rows = WIDTH * EXPANSIONS

    def __init__(self, job: DraftJob, id_map: IdMap | None, limit: int) -> None:
        super().__init__(job, NAME, id_map)
        self._limit = limit
        self._scores = [0.0]  # of each node, log of the probability of its path
        self._expansions = 0

    @property
    def likeliest(self) -> int:
        return WIDTH

    def extend(self, answer: Answer) -> None:
        first = len(self.tokens) + 1
        for i, node in enumerate(self.frontier):
            ids, p = self._candidates(answer, i)
            for at in ranked(ids, p, None)[:WIDTH]:
                self._add(int(ids[at]), node)
                self._scores.append(self._scores[node] + math.log(float(p[at])))
        new = np.arange(first, len(self.tokens) + 1)
        best = new[np.argsort(-np.array(self._scores)[new], kind="stable")[:WIDTH]]
        least = self._least_kept()
        self.frontier = [int(node) for node in best if self._scores[node] > least and self._goes_on(int(node))]
        if not self.frontier or self._expansions == EXPANSIONS:
            self.finish()
        self._expansions += 1

    def finish(self) -> None:
        scores = np.array(self._scores[1:])
        kept = np.sort(np.argsort(-scores, kind="stable")[: self._limit])
        place = {0: 0} | {int(at) + 1: new for new, at in enumerate(kept, 1)}
        parents = [place[self.parents[at]] for at in kept]
        tokens = np.array(self.tokens, dtype=np.uint32)[kept]
        tree = DraftTree(tokens, np.array(parents, dtype=np.int64))
        self.outcome = Draft(tree, DraftKind.CHOSEN, (), NAME, float(np.exp(scores[kept]).sum()))

    def _least_kept(self) -> float:
        """The score of the last node that would be kept now; -inf while there is room."""
        if len(self.tokens) < self._limit:
            return -math.inf
        return float(np.partition(self._scores[1:], len(self.tokens) - self._limit)[len(self.tokens) - self._limit])


def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> EagleDrafter:
    """Loads the head: blocking, seconds. Raises ConfigError."""
    head = load_head(config, argument)

    def new_growth(job: DraftJob, limit: int) -> DynamicGrowth:
        return DynamicGrowth(job, head.parts.target.id_map, limit)

    drafter = EagleDrafter(NAME, head, new_growth, metrics, tree=True, token_budget=config.token_budget)
    drafter.warm_up()
    return drafter
