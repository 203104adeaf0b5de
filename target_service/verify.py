"""From the logits at the nodes of trees to what is sent back, in the forms that were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.errors import SpecdecError
from specdec.core.randomness import Purpose, target_key, uniforms
from specdec.core.tree import Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw, Verification, VerifyForm
from specdec.edge.messages import OpenSession, VerifyRequest
from specdec.lm.answers import answer_all
from specdec.lm.draw import raw_logprobs
from specdec.lm.histories import Histories
from specdec.lm.question import Answer, Question

_NO_IDS: Ids = np.zeros(0, dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class VerifyItem:
    """One request of one session. logits: float32[nodes, padded vocabulary], raw; context: uint32[n], at its end the
    root."""

    logits: torch.Tensor
    context: Ids
    opening: OpenSession
    request: VerifyRequest


def verify_all(items: Sequence[VerifyItem], vocab_size: int) -> list[Verification | SpecdecError]:
    """One result per item, in order; EmptyLaw or BadLogits where an item's laws cannot be formed, which concerns no
    other. A pure function of each item alone."""
    answers = answer_all([_question(item) for item in items], vocab_size)
    return [
        _verification(item, answer, vocab_size) if isinstance(answer, Answer) else answer
        for item, answer in zip(items, answers, strict=True)
    ]


def _question(item: VerifyItem) -> Question:
    """Forms Y and TYPICAL ask for y and, where wanted, the probabilities of the children; TYPICAL for entropies too.
    Form PQ: for z of every node, number i of (seed, base) for node i, and the laws of the inner nodes on their
    supports."""
    tree, opening, base = item.request.tree, item.opening, len(item.context)
    histories = Histories.of_tree(item.context, opening.turn_start, tree)
    if item.request.form is not VerifyForm.PQ:
        depths = tree.depths.tolist()
        keys = {0: 0} if opening.params.greedy else {d: target_key(opening.seed, base + d) for d in set(depths)}
        looks = [tree.token_ids[np.array(c, dtype=np.int64) - 1] for c in tree.children] if _wants_p(item) else ()
        entropy = item.request.form is VerifyForm.TYPICAL
        drawn = [keys.get(depth, 0) for depth in depths]
        return Question(item.logits, histories, opening.params, keys=drawn, looks=looks, entropy=entropy)
    us = uniforms(opening.seed, base, Purpose.OUTSIDE, tree.num_nodes).tolist()
    supports = dict(zip(tree.inner_nodes, item.request.supports, strict=True))
    looks = [supports.get(node, _NO_IDS) for node in range(tree.num_nodes)]
    return Question(item.logits, histories, opening.params, us=us, looks=looks)


def _wants_p(item: VerifyItem) -> bool:
    request = item.request
    return request.form is VerifyForm.TYPICAL or (request.want_child_p and request.form is VerifyForm.Y)


def _verification(item: VerifyItem, answer: Answer, vocab_size: int) -> Verification:
    request, tree = item.request, item.request.tree
    drawn = answer.drawn
    laws: tuple[TargetLaw, ...] = ()
    if request.form is VerifyForm.PQ:
        tails = answer.tails.astype(np.float32)
        drawn = np.where(tails > 0, drawn, np.uint32(NO_OUTSIDE)).astype(np.uint32)
        laws = tuple(
            TargetLaw(support, answer.looked[node].astype(np.float32), float(tails[node]))
            for node, support in zip(tree.inner_nodes, request.supports, strict=True)
        )
    child_p = _child_p(item, answer) if _wants_p(item) else None
    entropies = None if answer.entropies is None else answer.entropies.astype(np.float32)
    return Verification(request.form, drawn, laws, child_p, _logprobs(item, drawn, laws, vocab_size), entropies)


def _child_p(item: VerifyItem, answer: Answer) -> NDArray[np.float32]:
    tree = item.request.tree
    out = np.empty(tree.num_draft_tokens, dtype=np.float32)
    for children, p in zip(tree.children, answer.looked, strict=True):
        out[np.array(children, dtype=np.int64) - 1] = p
    return out


def _logprobs(item: VerifyItem, drawn: Ids, laws: tuple[TargetLaw, ...], vocab_size: int) -> Logprobs | None:
    top = item.opening.params.logprobs
    if top is None:
        return None
    inner = item.request.tree.inner_nodes if laws else ()
    return raw_logprobs(item.logits[:, :vocab_size], drawn, inner, [law.ids for law in laws], top)
