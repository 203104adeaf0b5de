"""From the logits at the nodes of a tree to what is sent back, in the form that was asked for."""

from __future__ import annotations

import numpy as np
import torch

from specdec.core.randomness import Purpose, target_key, uniforms
from specdec.core.tree import Ids
from specdec.core.verification import TargetLaw, Verification, VerifyForm
from specdec.edge.messages import OpenSession, VerifyRequest
from specdec.lm.draw import child_probabilities, draw_y, outside_draw, raw_logprobs
from specdec.lm.law import Histories, Laws, target_laws


def verify(
    logits: torch.Tensor, context: Ids, opening: OpenSession, request: VerifyRequest, vocab_size: int
) -> Verification:
    """A pure function. logits: float32[nodes, padded vocabulary], raw; context: uint32[n], at its end the
    root.

    Raises EmptyLaw or BadLogits."""
    tree, params = request.tree, opening.params
    histories = Histories.of_tree(context, opening.turn_start, tree)
    laws = target_laws(logits, histories, params, vocab_size)
    targets: tuple[TargetLaw, ...] = ()
    child_p = None
    if request.form is VerifyForm.Y:
        keys = {depth: target_key(opening.seed, len(context) + depth) for depth in set(tree.depths.tolist())}
        drawn = draw_y(laws, [keys[depth] for depth in tree.depths.tolist()])
        if request.want_child_p:
            child_p = child_probabilities(laws, tree.parents, tree.token_ids)
    else:
        drawn, targets = _outside(laws, opening.seed, len(context), request)
    logprobs = None
    if params.logprobs is not None:
        supports = [law.ids for law in targets]
        inner = tree.inner_nodes if targets else ()
        logprobs = raw_logprobs(laws, drawn, inner, supports, params.logprobs)
    return Verification(request.form, drawn, targets, child_p, logprobs)


def _outside(laws: Laws, seed: int, base: int, request: VerifyRequest) -> tuple[Ids, tuple[TargetLaw, ...]]:
    """Form PQ: z of every node, number i of (seed, base) for node i, and the laws of the inner nodes."""
    tree = request.tree
    us = uniforms(seed, base, Purpose.OUTSIDE, tree.num_nodes)
    supports = dict(zip(tree.inner_nodes, request.supports, strict=True))
    nothing: Ids = np.zeros(0, dtype=np.uint32)
    drawn = np.empty(tree.num_nodes, dtype=np.uint32)
    targets = []
    for node in range(tree.num_nodes):
        law, drawn[node] = outside_draw(*laws.row(node), supports.get(node, nothing), float(us[node]))
        if node in supports:
            targets.append(law)
    return drawn, tuple(targets)
