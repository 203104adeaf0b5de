"""Acceptance rules: pure functions from a draft, the target's answer and uniforms to what is emitted. What
they emit is distributed as the target alone would have it (algorithms.md, sections 0 to 5). Here the two plain ones,
node by node; `block` and `traversal` judge drafts as wholes, `rules` lists all by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import ReplicaFault
from specdec.core.laws import draw
from specdec.core.tree import DraftTree, Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw, Verification, VerifyForm

Floats = NDArray[np.float64]
MASS_TOLERANCE = 1e-3  # float32 sums over a long vocabulary stay well within it, a wrong law does not


@dataclass(frozen=True, slots=True)
class Acceptance:
    """nodes: the accepted draft nodes from the root down, root excluded. token: the last token emitted, the
    bonus token if `bonus` (drawn at a leaf: nothing was rejected), else the recovered one.

    alphas: of the root and of each accepted node, as far as they have children, how well the draft fits there. p/q
    form: sum of min(p, q), 1 - TV; for several siblings that of the first. y-form: the target's mass on the children,
    if their p came. None for coupled drafts, whose acceptance can only be counted. Whether a node is reached never
    depends on what lies below it, so the mean over many cycles is unbiased under every rule (`block`).

    chances: the exact chances that a draft which came to those nodes goes on from there, where they are known and are
    not the alphas themselves; None: they are."""

    nodes: tuple[int, ...]
    token: int
    bonus: bool
    alphas: tuple[float, ...] = ()
    chances: tuple[float, ...] | None = None

    @property
    def exact_chances(self) -> tuple[float, ...]:
        """One per judged node from the root down, () where acceptance can only be counted: for the planner."""
        return self.alphas if self.chances is None else self.chances


Rule = Callable[[Draft, Verification, Floats], Acceptance]


def emitted(draft: Draft, acceptance: Acceptance) -> Ids:
    """uint32[accepted + 1]: the tokens to commit, the recovered or bonus token last."""
    tokens = [*(draft.tree.token(node) for node in acceptance.nodes), acceptance.token]
    return np.array(tokens, dtype=np.uint32)


def follow(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """The y-form (section 0): walk down the tree while some child equals the target's own draw. Exact for any
    draft, since every token emitted is a y; `uniforms` is not read."""
    assert verification.form is VerifyForm.Y, "the y-form judges by the target's own draws"
    tree, child_p = draft.tree, verification.child_p
    nodes: list[int] = []
    alphas: list[float] = []
    node = 0
    while True:
        y = int(verification.drawn[node])
        children = {tree.token(child): child for child in reversed(tree.children[node])}
        if children and child_p is not None and not draft.coupled:
            alphas.append(min(1.0, float(sum(child_p[child - 1] for child in children.values()))))
        if y not in children:
            return Acceptance(tuple(nodes), y, not children, tuple(alphas))
        node = children[y]
        nodes.append(node)


def token_rule(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """Modified rejection sampling, token by token (Leviathan et al. 2023, Chen et al. 2023), on trees sibling
    by sibling (SpecInfer, Miao et al. 2024; without replacement: Yang et al. 2024), on sparse laws (section
    5).

    uniforms: float64[nodes], the ACCEPT numbers: number i judges node i, number 0 draws from the residual."""
    require_laws(draft, verification)
    tree = draft.tree
    order = {node: i for i, node in enumerate(tree.inner_nodes)}
    nodes: list[int] = []
    alphas: list[float] = []
    node = 0
    while tree.children[node]:
        law, target = draft.laws[order[node]], verification.laws[order[node]]
        p, tail = normalised(target)
        alphas.append(float(np.minimum(p, law.q).sum()))
        ids = law.ids.tolist()
        xs = [ids.index(tree.token(child)) for child in tree.children[node]]
        us = [float(uniforms[child]) for child in tree.children[node]]
        winner, p, tail = _judge(p, tail, law.q, xs, us, draft.kind)
        if winner is None:
            token = recovered(law, p, tail, int(verification.drawn[node]), float(uniforms[0]))
            return Acceptance(tuple(nodes), token, False, tuple(alphas))
        node = tree.children[node][winner]
        nodes.append(node)
    return Acceptance(tuple(nodes), int(verification.drawn[node]), True, tuple(alphas))


def require_laws(draft: Draft, verification: Verification) -> None:
    """What every rule of the p/q form stands on."""
    assert verification.form is VerifyForm.PQ, "a p/q rule needs the target's laws"
    assert draft.kind is not DraftKind.CHOSEN or not draft.tree.num_draft_tokens, (
        "chosen drafts have no law to judge them by: use the y-form"
    )


def normalised(target: TargetLaw) -> tuple[Floats, float]:
    """(p float64[m] on the support, the mass outside), summing to 1: the law that the rules judge by."""
    p = target.p.astype(np.float64)
    mass = float(p.sum()) + target.tail
    p /= mass
    return p, target.tail / mass


def recovered(law: DraftLaw, rest: Floats, tail: float, outside: int, u: float) -> int:
    """A draw from what a rejection left: rest float64[m] on the law's support, tail outside it, need not sum to 1;
    `outside`: the outside sample, whose law no rejection changes."""
    index = draw(np.append(rest, tail), u)
    token = int(law.ids[index]) if index < len(law.ids) else outside
    assert token != NO_OUTSIDE, "mass outside but no sample of it: check_verification was left out"
    return token


def _judge(
    p: Floats, tail: float, q: Floats, xs: list[int], us: list[float], kind: DraftKind
) -> tuple[int | None, Floats, float]:
    """The first child that is accepted, by its place among the siblings, or None; and the law that is left: p
    on the support and the mass outside. Clipping and renormalising never touch the proportions outside, so
    the one outside sample stays valid throughout.

    p, q: float64[m]; xs: the children's indices in drawing order; us: their uniforms."""
    for i, (x, u) in enumerate(zip(xs, us, strict=True)):
        assert q[x] > 0, "a child that its law cannot draw: check_draft was left out"
        if u * q[x] < p[x]:
            return i, p, tail
        rest = np.maximum(p - q, 0.0)
        mass = float(rest.sum()) + tail
        if mass > 0:  # else p = q: only rounding can have rejected, and the draw is from p
            p, tail = rest / mass, tail / mass
        if kind is DraftKind.SAMPLED_WITHOUT_REPLACEMENT:
            q = q.copy()
            q[x] = 0.0
            q /= q.sum() or 1.0
    return None, p, tail


def check_verification(draft: Draft, verification: Verification, form: VerifyForm, vocab_size: int) -> None:
    """Raises ReplicaFault unless the answer can be judged: in the form that was asked for, of the draft's
    shape, with finite laws of mass 1 and every token that could be emitted within the vocabulary. `draft`
    must have passed `check_draft`, and have laws if the form is PQ."""
    tree, drawn = draft.tree, verification.drawn
    if verification.form is not form:
        raise ReplicaFault(f"form {verification.form.name} where {form.name} was asked for")
    if drawn.shape != (tree.num_nodes,):
        raise ReplicaFault(f"{drawn.shape} draws for {tree.num_nodes} nodes")
    emittable = np.ones(tree.num_nodes, dtype=bool)
    if form is VerifyForm.PQ:
        if len(verification.laws) != len(tree.inner_nodes):
            raise ReplicaFault(f"{len(verification.laws)} laws for {len(tree.inner_nodes)} nodes with children")
        for node, law, target in zip(tree.inner_nodes, draft.laws, verification.laws, strict=True):
            _check_target_law(node, law, target, vocab_size)
            emittable[node] = target.tail > 0
            if emittable[node] and (target.ids == drawn[node]).any():
                raise ReplicaFault(f"node {node}: outside sample {drawn[node]} lies inside the support")
    elif verification.child_p is not None:
        _check_child_p(tree, verification.child_p)
    if form is VerifyForm.TYPICAL:
        _check_entropies(tree, verification, vocab_size)
    if (drawn[emittable] >= vocab_size).any():
        raise ReplicaFault(f"draw {drawn[emittable].max()} in a vocabulary of {vocab_size}")
    if verification.logprobs is not None:
        _check_logprobs(tree, verification.laws, verification.logprobs)


def _check_target_law(node: int, law: DraftLaw, target: TargetLaw, vocab_size: int) -> None:
    if not np.array_equal(target.ids, law.ids) or target.p.shape != target.ids.shape:
        raise ReplicaFault(f"node {node}: the law is not on the draft's support")
    mass = float(target.p.sum(dtype=np.float64)) + target.tail
    if not (target.p.min() >= 0 and target.tail >= 0 and abs(mass - 1) <= MASS_TOLERANCE):
        raise ReplicaFault(f"node {node}: no law, its mass is {mass}")
    if target.ids.max() >= vocab_size and target.p[target.ids >= vocab_size].any():
        raise ReplicaFault(f"node {node}: mass on an id beyond the vocabulary of {vocab_size}")


def _check_child_p(tree: DraftTree, child_p: NDArray[np.float32]) -> None:
    if child_p.shape != (tree.num_draft_tokens,):
        raise ReplicaFault(f"{child_p.shape} child probabilities for {tree.num_draft_tokens} draft tokens")
    if not (np.isfinite(child_p) & (child_p >= 0) & (child_p <= 1 + MASS_TOLERANCE)).all():
        raise ReplicaFault("child probabilities must be finite and lie between 0 and 1")


def _check_entropies(tree: DraftTree, verification: Verification, vocab_size: int) -> None:
    if verification.child_p is None or verification.entropies is None:
        raise ReplicaFault("form TYPICAL needs the probability of every draft token and the entropy of every node")
    if verification.entropies.shape != (tree.num_nodes,):
        raise ReplicaFault(f"{verification.entropies.shape} entropies for {tree.num_nodes} nodes")
    most = math.log(vocab_size) + MASS_TOLERANCE
    if not ((verification.entropies >= -MASS_TOLERANCE) & (verification.entropies <= most)).all():
        raise ReplicaFault(f"entropies must lie between 0 and {most}, the logarithm of the vocabulary's size")


def _check_logprobs(tree: DraftTree, laws: tuple[TargetLaw, ...], logprobs: Logprobs) -> None:
    arrays = [logprobs.drawn, *logprobs.support, logprobs.top]
    if (
        logprobs.drawn.shape != (tree.num_nodes,)
        or [a.shape for a in logprobs.support] != [law.p.shape for law in laws]
        or logprobs.top.shape != logprobs.top_ids.shape
        or logprobs.top.shape[:1] != (tree.num_nodes,)
    ):
        raise ReplicaFault("log-probabilities do not have the draft's shape")
    if any(np.isnan(a).any() for a in arrays):
        raise ReplicaFault("a log-probability is not a number")
