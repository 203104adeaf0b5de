"""Draft laws: how a drafter cuts its law to what travels, how it draws from exactly that, and how the
coordinator checks both (algorithms.md, sections 3, 5 and 10).

A drafter that samples from one law and reports another would bias the output unseen. Draft noise is keyed, so
here it is seen: the coordinator draws again and compares."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import DraftFault
from specdec.core.randomness import Purpose, uniforms
from specdec.core.tree import Ids

MAX_SUPPORT = 255  # a support's size travels as one byte
_TOP_WEIGHT = 2.0**15  # leaves float16 a range of 2^39 below it, of which 2^29 at full precision


def draft_law(ids: Ids, probs: NDArray[np.floating], support: int) -> DraftLaw:
    """The law that a drafter samples from and sends: the `support` likeliest of ids (uint32[m], ties to the
    lowest ids), in descending order, as float16 weights in proportion to probs (float[m], need not sum to 1).

    The likeliest token weighs 2^15; tokens whose weight would round to 0 are left out, so every weight that
    is kept is positive and finite. Raises DraftFault if probs is no law (NaN, infinite, negative, or without
    mass)."""
    assert 1 <= support <= MAX_SUPPORT, f"support {support} is not in 1..{MAX_SUPPORT}"
    if not (probs.size and np.isfinite(probs).all() and probs.min() >= 0 and probs.max() > 0):
        raise DraftFault("the draft model's law is not finite, is negative or has no mass")
    top = _likeliest(ids, probs, support)
    p = probs[top].astype(np.float64)
    weights = (p / p[0] * _TOP_WEIGHT).astype(np.float16)
    kept = weights > 0
    return DraftLaw(ids[top][kept], weights[kept])


def _likeliest(ids: Ids, probs: NDArray[np.floating], n: int) -> NDArray[np.intp]:
    """Indices of the n likeliest entries, fewer if fewer have mass; a partial sort first, because
    vocabularies are long."""
    floor = np.partition(probs, len(probs) - n)[len(probs) - n] if len(probs) > n else 0
    candidates = np.flatnonzero((probs >= floor) & (probs > 0))
    order = np.lexsort((ids[candidates], -probs[candidates]))
    return candidates[order[:n]]


def draw(weights: NDArray[np.float64], u: float) -> int:
    """Index drawn by inverting the running sum of weights (float64[m], need not sum to 1) at u in [0, 1).
    Never an entry of weight 0: where rounding runs off the end, the last positive one."""
    running = weights.cumsum()
    mass = float(running[-1])
    assert mass > 0, "a law without mass has no draw"
    index = int(running.searchsorted(u * mass, side="right"))
    return index if index < len(weights) else int(np.flatnonzero(weights)[-1])


def draw_siblings(law: DraftLaw, us: NDArray[np.float64]) -> list[int]:
    """Indices into the law's support, drawn one after another without replacement, one number each. Fewer
    than len(us) where q runs out: how many depends on the law alone, never on what was drawn (section 9)."""
    q = law.q.copy()
    drawn: list[int] = []
    for u in us[: np.count_nonzero(q)]:
        drawn.append(draw(q, float(u)))
        q[drawn[-1]] = 0.0
    return drawn


def check_draft(draft: Draft, vocab_size: int) -> None:
    """Raises DraftFault unless the draft can be judged: tokens within the vocabulary, siblings distinct where
    they must be, and, for sampled drafts, one valid law per inner node that could have drawn every child.

    A law that gives weight to an id beyond the target's vocabulary is refused whatever was drawn from it. To
    refuse only the drafts in which such an id was *drawn* would select drafts by their sampled tokens, which
    biases the output (section 9). Such ids with weight 0 do no harm."""
    tree = draft.tree
    if not math.isfinite(draft.score):
        raise DraftFault(f"score {draft.score}")
    if draft.kind is DraftKind.CHOSEN:
        if draft.laws:
            raise DraftFault(f"{len(draft.laws)} laws in a chosen draft: it has none")
    elif len(draft.laws) != len(tree.inner_nodes):
        raise DraftFault(f"{len(draft.laws)} laws for {len(tree.inner_nodes)} nodes with children")
    for node, law in zip(tree.inner_nodes, draft.laws, strict=False):
        possible = _check_law(law, node, vocab_size)
        if not possible.issuperset(tree.token(child) for child in tree.children[node]):
            raise DraftFault(f"node {node} has a child that its law cannot draw")
    if (tree.token_ids >= vocab_size).any():
        raise DraftFault(f"draft token {tree.token_ids.max()} in a vocabulary of {vocab_size}")
    if draft.kind is not DraftKind.SAMPLED:
        for node in tree.inner_nodes:
            if len({tree.token(child) for child in tree.children[node]}) != len(tree.children[node]):
                raise DraftFault(f"node {node} has the same child twice")


def _check_law(law: DraftLaw, node: int, vocab_size: int) -> set[int]:
    """The ids that the law can draw."""
    ids, weights = law.ids.tolist(), law.weights.tolist()
    if len(weights) != len(ids) or not 1 <= len(ids) <= MAX_SUPPORT:
        raise DraftFault(f"node {node}: {len(weights)} weights for {len(ids)} ids, of 1..{MAX_SUPPORT}")
    if not (all(w >= 0 for w in weights) and 0 < sum(weights) < math.inf):
        raise DraftFault(f"node {node}: weights must be finite, not negative and not all 0")
    if len(set(ids)) != len(ids):
        raise DraftFault(f"node {node}: an id stands twice in the support")
    possible = {v for v, w in zip(ids, weights, strict=True) if w > 0}
    if max(possible) >= vocab_size:
        raise DraftFault(f"node {node}: weight on id {max(possible)} in a vocabulary of {vocab_size}")
    return possible


def check_draws(draft: Draft, seed: int, base: int) -> None:
    """Draws every token of a sampled draft again, from the law that came with it and the DRAFT numbers of
    (seed, base), number i for node i. Raises DraftFault at the first token that differs. The draft must have
    passed `check_draft`."""
    us = uniforms(seed, base, Purpose.DRAFT, draft.tree.num_nodes)
    for node, law in zip(draft.tree.inner_nodes, draft.laws, strict=False):
        q = law.q.copy()
        for child in draft.tree.children[node]:
            if not q.any():
                raise DraftFault(f"node {node} has more children than its law has tokens")
            x = draw(q, float(us[child]))
            if law.ids[x] != draft.tree.token(child):
                raise DraftFault(
                    f"node {child}: token {draft.tree.token(child)} was not drawn from the reported law, "
                    f"which gives {law.ids[x]}"
                )
            if draft.kind is DraftKind.SAMPLED_WITHOUT_REPLACEMENT:
                q[x] = 0.0
