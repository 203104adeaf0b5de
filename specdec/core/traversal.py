"""Traversal verification of sampled trees (Weng et al. 2025, arXiv 2505.12398; algorithms.md, section 3): leaves
first, each kept or deleted with everything above it in view. On chains it is block verification.

It accepts more than the walk from the root on most trees, not on all: draw the earliest child the largest subtree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specdec.core.acceptance import Acceptance, Floats, normalised, recovered, require_laws
from specdec.core.block import child_weight, kept_chance
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.verification import Verification


def traversal_rule(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """uniforms: float64[nodes], the ACCEPT numbers: number i judges node i, when it is a leaf that the deletions have
    left; number 0 draws from the residual."""
    require_laws(draft, verification)
    tree = draft.tree
    branches: list[_Branch] = []  # from the root to the node under test
    node, log_a = 0, 0.0
    while True:
        while tree.children[node]:
            branches.append(_branch(draft, verification, node, log_a))
            node = branches[-1].left[0]
            log_a = branches[-1].first(tree.token(node))
        if node == 0 or float(uniforms[node]) < math.exp(log_a):
            return _accepted(draft, verification, node, int(verification.drawn[node]))
        while True:
            branch = branches[-1]
            branch.delete(tree.token(node), draft.kind)
            node = branch.node
            if branch.left:
                node = branch.left[0]
                log_a = branch.first(tree.token(node))
                break
            if node == 0 or float(uniforms[node]) < math.exp(branch.log_a):
                outside = int(verification.drawn[node])
                token = recovered(branch.law, branch.p, branch.tail, outside, float(uniforms[0]))
                return _accepted(draft, verification, node, token)
            branches.pop()


@dataclass(slots=True)
class _Branch:
    """An inner node on the way to the leaf under test, as the deletions have left it: weight log_a, law p and tail;
    q: what its next child was drawn from; left: the children that stand, in drawing order."""

    node: int
    log_a: float
    law: DraftLaw
    p: Floats
    tail: float
    q: Floats
    left: list[int]

    def first(self, token: int) -> float:
        """log of the weight of the first child that stands, whose token this is."""
        x = self._place(token)
        return child_weight(self.log_a, float(self.p[x]), float(self.q[x]))

    def delete(self, token: int, kind: DraftKind) -> None:
        """The first child was refused. Where nothing is left of the law, only rounding can have refused it, or it had
        no weight at all."""
        a = math.exp(self.log_a)
        rest = np.maximum(a * self.p - self.q, 0.0)
        mass = float(rest.sum()) + a * self.tail
        if mass > 0:
            self.log_a = math.log(kept_chance(self.log_a, mass))
            self.p, self.tail = rest / mass, a * self.tail / mass
        elif self.log_a < 0.0:
            self.log_a = -math.inf
        del self.left[0]
        if kind is DraftKind.SAMPLED_WITHOUT_REPLACEMENT:
            self.q = self.q.copy()
            self.q[self._place(token)] = 0.0
            self.q /= self.q.sum() or 1.0

    def _place(self, token: int) -> int:
        return int(np.flatnonzero(self.law.ids == token)[0])


def _branch(draft: Draft, verification: Verification, node: int, log_a: float) -> _Branch:
    i = draft.tree.inner_nodes.index(node)
    p, tail = normalised(verification.laws[i])
    return _Branch(node, log_a, draft.laws[i], p, tail, draft.laws[i].q, list(draft.tree.children[node]))


def _accepted(draft: Draft, verification: Verification, node: int, token: int) -> Acceptance:
    """The path to `node`. Chances: none are known."""
    tree = draft.tree
    nodes = tree.nodes_to(node)
    alphas = []
    for law, target, inner in zip(draft.laws, verification.laws, tree.inner_nodes, strict=True):
        if inner in (0, *nodes):
            alphas.append(float(np.minimum(normalised(target)[0], law.q).sum()))
    return Acceptance(nodes, token, not tree.children[node], tuple(alphas), ())
