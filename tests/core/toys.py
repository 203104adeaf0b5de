"""Toy worlds: a target and a draft law for every context, over a few tokens, and what replicas would send of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, TargetLaw, Verification, VerifyForm
from tests.core.integration import Floats, Law

Tokens = tuple[int, ...]
CHAIN = {k: tuple(range(k)) for k in range(5)}  # parents of a chain of k
PLACEHOLDER = 1000  # id that stands for the draw of node id - PLACEHOLDER until its law is known


@dataclass(frozen=True, eq=False)
class Toy:
    """target: context -> float32[V]; draft: context -> the draft law there."""

    name: str
    target: Callable[[Tokens], NDArray[np.float32]]
    draft: Callable[[Tokens], DraftLaw]

    def p(self, context: Tokens) -> Floats:
        """The target law exactly as it travels: float32, normalised in float64."""
        p = self.target(context).astype(np.float64)
        p /= p.sum()
        return p

    def __str__(self) -> str:
        return self.name


def law_of(weights: Sequence[float], ids: Sequence[int] | None = None) -> DraftLaw:
    ids = range(len(weights)) if ids is None else ids
    return DraftLaw(np.array(ids, np.uint32), np.array(weights, np.float16))


def constant(name: str, p: Sequence[float], weights: Sequence[float], ids: Sequence[int] | None = None) -> Toy:
    """The same two laws at every position."""
    target, draft = np.array(p, np.float32), law_of(weights, ids)
    return Toy(name, lambda context: target, lambda context: draft)


T3 = constant("T3", (0.5, 0.3, 0.2), (1, 1, 3))
T4 = constant("T4", (0.4, 0.4, 0.2), (1, 2, 7))
B2 = constant("B2", (1 / 3, 2 / 3), (2, 1))
C2 = constant("C2", (0.3, 0.7), (7, 3))
SPARSE_T3 = constant("sparse T3", (0.5, 0.3, 0.2), (3, 1), (2, 0))
PAIR_5 = constant("PAIR-5", (0.50, 0.20, 0.15, 0.10, 0.05), (2, 4, 1, 1, 2))


def random_toy(
    seed: int, *, vocab: int = 3, support: int | None = None, tail: bool = True, zeros: bool = False, memory: int = 4
) -> Toy:
    """Laws that depend on the last `memory` tokens. support: ids in S (None: all); tail False: p is 0 outside
    S; zeros: one entry of S has p = 0 and another has weight 0."""

    @cache
    def laws(context: Tokens) -> tuple[NDArray[np.float32], DraftLaw]:
        rng = np.random.default_rng([seed, *context[-memory:]])
        ids = rng.permutation(vocab)[: support or vocab].astype(np.uint32)
        p = rng.dirichlet(np.full(vocab, 0.7)).astype(np.float32) + np.float32(1e-3)
        weights = rng.dirichlet(np.full(len(ids), 0.7)).astype(np.float16) + np.float16(1e-3)
        if not tail:
            p[np.setdiff1d(np.arange(vocab), ids)] = 0
        if zeros:
            p[ids[0]], weights[1] = 0, 0
        return p / p.sum(), DraftLaw(ids, weights)

    name = f"random {seed}: V {vocab}, S {support or vocab}{'' if tail else ', no tail'}{', zeros' if zeros else ''}"
    return Toy(name, lambda context: laws(context)[0], lambda context: laws(context)[1])


def drafts(toy: Toy, kind: DraftKind, shape: Tokens, context: Tokens) -> Iterator[tuple[Draft, float]]:
    """Every draft of the shape (parents in wire order) that can be drawn after `context`, with its
    probability. Without replacement, children for which q has no token left are missing. CHOSEN: the
    likeliest tokens of q."""
    without = kind is not DraftKind.SAMPLED

    def grow(at: int, index: dict[int, int], tree: DraftTree, mass: float) -> Iterator[tuple[Draft, float]]:
        if at == len(shape):
            laws = tuple(toy.draft(context + tuple(tree.path(node))) for node in tree.inner_nodes)
            yield Draft(tree, kind, () if kind is DraftKind.CHOSEN else laws), mass
            return
        parent = index.get(shape[at])
        taken = () if parent is None else [tree.token(child) for child in tree.children[parent]]
        law = None if parent is None else toy.draft(context + tuple(tree.path(parent)))
        q = np.zeros(1) if law is None else law.q.copy()
        if law is not None and without:
            q[np.isin(law.ids, taken)] = 0
        if law is None or parent is None or not q.any():
            yield from grow(at + 1, index, tree, mass)
            return
        q /= q.sum()
        choices = [int(np.argmax(q))] if kind is DraftKind.CHOSEN else np.flatnonzero(q).tolist()
        for x in choices:
            grown = DraftTree(np.append(tree.token_ids, law.ids[x]), np.append(tree.parents, parent))
            chance = 1.0 if kind is DraftKind.CHOSEN else float(q[x])
            yield from grow(at + 1, {**index, at + 1: grown.num_nodes - 1}, grown, mass * chance)

    yield from grow(0, {0: 0}, DraftTree.chain([]), 1.0)


def target_law(p: NDArray[np.float32], law: DraftLaw) -> tuple[TargetLaw, Floats]:
    """What a verifier sends of p for this support; and the law of the outside sample, float64[V]."""
    inside = law.ids[law.ids < len(p)].astype(np.int64)
    on_support = np.array([p[i] if i < len(p) else 0.0 for i in law.ids], np.float32)
    outside = p.astype(np.float64)
    outside[inside] = 0.0
    return TargetLaw(law.ids, on_support, float(outside.sum())), outside


def pq_reply(toy: Toy, draft: Draft, context: Tokens) -> tuple[Verification, list[Law]]:
    """The p/q answer with a placeholder for every draw; and the law of each node's draw."""
    drawn, laws, draws = [], [], []
    supports = iter(draft.laws)
    for node in range(draft.tree.num_nodes):
        p = toy.target(context + tuple(draft.tree.path(node)))
        outside = p.astype(np.float64)
        if draft.tree.children[node]:
            target, outside = target_law(p, next(supports))
            laws.append(target)
        some = outside.sum() > 0
        drawn.append(PLACEHOLDER + node if some else NO_OUTSIDE)
        draws.append({v: w / outside.sum() for v, w in enumerate(outside) if w > 0} if some else {})
    return Verification(VerifyForm.PQ, np.array(drawn, np.uint32), tuple(laws)), draws


def sequence_law(toy: Toy, context: Tokens, length: int) -> Law:
    """The target alone: law of the next `length` tokens."""
    if length == 0:
        return {(): 1.0}
    law: Law = {}
    for v, mass in enumerate(toy.p(context)):
        for rest, m in sequence_law(toy, (*context, v), length - 1).items():
            law[(v, *rest)] = mass * m
    return {tokens: mass for tokens, mass in law.items() if mass > 0}
