"""Draft trees as flat arrays. Node 0 is the root, the end of the context; draft token i is node i + 1.
Parents come before children, siblings stand in drawing order. A chain is a thin tree, plain decoding the
empty one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specdec.core.errors import DraftFault

Ids = NDArray[np.uint32]
MAX_NODES = 255  # a parent travels as one byte


@dataclass(frozen=True)
class DraftTree:
    """token_ids: uint32[n]; parents: int64[n], the node index of each draft token's parent, in 0..i for token i."""

    token_ids: Ids
    parents: NDArray[np.int64]

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if n > MAX_NODES:
            raise DraftFault(f"{n} draft tokens: a tree holds at most {MAX_NODES}")
        if len(self.parents) != n:
            raise DraftFault(f"{n} draft tokens but {len(self.parents)} parents")
        if n and (self.parents.min() < 0 or (self.parents > np.arange(n)).any()):
            raise DraftFault("a parent must come before its child")

    @staticmethod
    def chain(token_ids: Ids | list[int]) -> DraftTree:
        ids = np.asarray(token_ids, dtype=np.uint32)
        return DraftTree(ids, np.arange(len(ids)))

    @property
    def num_draft_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_nodes(self) -> int:
        return len(self.token_ids) + 1

    @cached_property
    def is_chain(self) -> bool:
        return bool((self.parents == np.arange(len(self.parents))).all())

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each node, its children's node indices in drawing order."""
        out: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for i, parent in enumerate(self.parents.tolist()):
            out[parent].append(i + 1)
        return tuple(tuple(c) for c in out)

    @cached_property
    def inner_nodes(self) -> tuple[int, ...]:
        """Nodes that have children, in node order: the nodes whose laws travel."""
        return tuple(node for node, c in enumerate(self.children) if c)

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """int64[num_nodes], 0 at the root: node d's token stands d positions after the context."""
        out = np.zeros(self.num_nodes, dtype=np.int64)
        for i, parent in enumerate(self.parents.tolist()):
            out[i + 1] = out[parent] + 1
        return out

    def token(self, node: int) -> int:
        """The draft token at `node` (> 0)."""
        assert node > 0, "the root carries no draft token"
        return int(self.token_ids[node - 1])

    def nodes_to(self, node: int) -> tuple[int, ...]:
        """The nodes from the root (excluded) to `node`, in order."""
        out: list[int] = []
        while node:
            out.append(node)
            node = int(self.parents[node - 1])
        return tuple(reversed(out))

    def path(self, node: int) -> list[int]:
        """Draft tokens from the root (excluded) to `node`, in order."""
        return [self.token(on_the_way) for on_the_way in self.nodes_to(node)]

    def truncate(self, n: int) -> DraftTree:
        """The first n draft tokens. Lawful for sampled drafts too: n must not depend on their values."""
        return self if n >= len(self.token_ids) else DraftTree(self.token_ids[:n], self.parents[:n])


EMPTY_TREE = DraftTree.chain([])
