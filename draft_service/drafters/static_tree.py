"""Shapes of draft trees that are fixed before anything is drafted."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class TreeShape:
    """Node 0 is the root; draft node i + 1 has parents[i] and, among the candidates at its place, the rank ranks[i].
    Level by level; siblings by falling size of their subtrees, so that the one drawn first has the largest
    (algorithms.md, section 3)."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @staticmethod
    def chain(length: int) -> TreeShape:
        return TreeShape(tuple(range(length)), (0,) * length)

    @property
    def num_draft_tokens(self) -> int:
        return len(self.parents)

    @cached_property
    def depth(self) -> int:
        """Of its deepest node, 0 without any."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths[-1]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of each node, its children in order."""
        out: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for i, parent in enumerate(self.parents):
            out[parent].append(i + 1)
        return tuple(map(tuple, out))


def best_tree(accuracies: Sequence[Sequence[float]], num_draft_tokens: int) -> TreeShape:
    """The tree of at most num_draft_tokens nodes whose expected number of right nodes is largest (Cai et al. 2024,
    "Medusa", section 2.3.3).

    accuracies[d][r]: how often the candidate of rank r is right at depth d + 1, given that the path to it is; a node is
    as often right as the product along its path. The likeliest nodes are taken, which is best, for a parent is at least
    as likely as its children. Ties: shallower first, then lower ranks."""
    chosen: list[tuple[int, int]] = []  # parent, rank
    heap: list[tuple[float, int, int, int, int]] = []  # -probability, depth, order, parent, rank
    order = 0

    def offer(parent: int, depth: int, probability: float) -> None:
        nonlocal order
        for rank, accuracy in enumerate(accuracies[depth] if depth < len(accuracies) else ()):
            if accuracy > 0:
                heapq.heappush(heap, (-probability * accuracy, depth, order, parent, rank))
                order += 1

    offer(0, 0, 1.0)
    while heap and len(chosen) < num_draft_tokens:
        negative, depth, _, parent, rank = heapq.heappop(heap)
        chosen.append((parent, rank))
        offer(len(chosen), depth + 1, -negative)
    return _by_level(chosen)


def _by_level(nodes: Sequence[tuple[int, int]]) -> TreeShape:
    """nodes: (parent, rank) of node i + 1, parents first."""
    sizes = [1] * (len(nodes) + 1)
    children: list[list[int]] = [[] for _ in sizes]
    for node in range(len(nodes), 0, -1):
        sizes[nodes[node - 1][0]] += sizes[node]
        children[nodes[node - 1][0]].append(node)
    parents, ranks = [], []
    level = [0]
    placed = {0: 0}
    while level:
        below = []
        for parent in level:
            for node in sorted(children[parent], key=lambda n: (-sizes[n], nodes[n - 1][1])):
                parents.append(placed[parent])
                ranks.append(nodes[node - 1][1])
                placed[node] = len(parents)
                below.append(node)
        level = below
    return TreeShape(tuple(parents), tuple(ranks))
