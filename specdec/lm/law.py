"""Logits -> law: the one meaning that both services use, so that p and q mean the same. Here in torch, on any device,
for many nodes at once; `specdec/lm/native/law.c` gives the same answers from host memory, sooner.

Order (contract.md, sampling parameters): logit bias, repetition, presence and frequency penalties -> masks ->
temperature -> top-k -> top-p -> min-p. All in float64; ties go to the lowest ids everywhere. Every step works
row by row with the same arithmetic however many rows there are, and a token counts the same whether it is
committed or on the path to a node: a node's law is bit for bit the law that plain decoding would see with the
same logits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.errors import InvalidArgument, ReplicaFault
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids
from specdec.lm.edits import Edits, edits_of
from specdec.lm.histories import Histories
from specdec.lm.question import Question

_FIRST_CANDIDATES = 1024  # of a top-p search; a full sort only where a law is very flat


class EmptyLaw(InvalidArgument):
    """The parameters leave no token that could be emitted."""

    reason = "EMPTY_LAW"

    def __init__(self) -> None:
        super().__init__("logit_bias", "-inf", "together with the other parameters it leaves no possible token")


class BadLogits(ReplicaFault):
    """The model computed NaN or +inf."""

    reason = "NAN_LOGITS"

    def __init__(self) -> None:
        super().__init__("the model computed NaN or +inf")


@dataclass(frozen=True, eq=False)
class Laws:
    """Next-token laws of n nodes. p: float64[n, m], rows summing to 1. ids: int64[n, m], ascending in each
    row, the tokens that the columns of p stand for; None: m is the vocabulary and column v is token v.
    Columns may have p = 0. raw: float32[n, vocabulary], the model's logits, untouched.

    bad, empty: bool[n], nodes whose logits are no numbers or that have no possible token; their p means nothing."""

    p: torch.Tensor
    ids: torch.Tensor | None
    raw: torch.Tensor
    bad: torch.Tensor
    empty: torch.Tensor

    def row(self, node: int) -> tuple[Ids, NDArray[np.float64]]:
        """(ids uint32[m] ascending, p float64[m]) of one node, in host memory."""
        p = self.p[node].cpu().numpy()
        ids = np.arange(len(p)) if self.ids is None else self.ids[node].cpu().numpy()
        return ids.astype(np.uint32), p


def treatment(params: SamplingParams, vocab_size: int) -> Hashable:
    """Questions of equal treatment can have their laws formed together."""
    if params.greedy:
        return True
    return params.top_k if 0 < params.top_k < vocab_size else 0, params.top_p < 1.0, params.min_p > 0.0


def target_laws(logits: torch.Tensor, histories: Histories, params: SamplingParams, vocab_size: int) -> Laws:
    """The laws of one session's nodes.

    logits: float32[n, padded vocabulary], raw. vocab_size: the tokenizer's; ids from there on have
    probability 0. Greedy (temperature below GREEDY_BELOW) gives point masses.

    Raises EmptyLaw (some node has no possible token) or BadLogits."""
    laws = joint_laws([Question(logits, histories, params)], vocab_size)
    if laws.bad.any():
        raise BadLogits
    if laws.empty.any():
        raise EmptyLaw
    return laws


def joint_laws(questions: Sequence[Question], vocab_size: int) -> Laws:
    """The laws of all nodes of questions of equal treatment, in their order. Raises nothing: see `Laws`."""
    params = [question.params for question in questions]
    counts = [len(question.logits) for question in questions]
    raw = torch.cat([question.logits[:, :vocab_size] for question in questions])
    best_raw = raw.amax(-1)
    scores = _scores(raw, questions, counts)
    best = scores.amax(-1)
    bad = ~(torch.isfinite(best_raw) | (best_raw == -torch.inf)) | torch.isnan(best) | (best == torch.inf)
    empty = (best_raw == -torch.inf) | (best == -torch.inf)
    if params[0].greedy:
        y = scores.argmax(-1, keepdim=True)  # torch returns the first of equal ones
        return Laws(torch.ones_like(y, dtype=torch.float64), y, raw, bad, empty)
    temperature, top_p, min_p = _columns([(p.temperature, p.top_p, p.min_p) for p in params], counts, raw.device)
    ids = None
    if 0 < params[0].top_k < vocab_size:
        ids = top_k_ids(scores, params[0].top_k)
        scores = scores.gather(-1, ids)
    scores = scores / temperature
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    if params[0].top_p < 1.0:
        weights, ids = _top_p(weights, ids, top_p)
    if params[0].min_p > 0.0:
        weights = torch.where(weights >= min_p, weights, 0.0)  # the likeliest token weighs exactly 1
    return Laws(weights / running_sums(weights), ids, raw, bad, empty)


def top_k_ids(values: torch.Tensor, k: int) -> torch.Tensor:
    """int64[n, k], ascending: columns of the k largest values of each row of values[n, m], ties to the
    lowest."""
    top, columns = torch.topk(values, k, sorted=False)
    least = top.amin(-1, keepdim=True)
    tied = (values == least).sum(-1) != (top == least).sum(-1)
    if bool(tied.any()):
        over, equal = values > least, values == least
        wanted = over | (equal & (equal.cumsum(-1) <= k - over.sum(-1, keepdim=True)))
        columns = torch.where(tied[:, None], torch.topk(wanted.byte(), k, sorted=False).indices, columns)
    return columns.sort(-1).values


def top_p_kept(p: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """bool[n, m]: the smallest prefix with mass >= top_p of p[n, m], whose rows fall. A mass of exactly top_p
    suffices. top_p: one for all, or [n, 1]."""
    before = p.cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    kept: torch.Tensor = before < top_p
    kept[:, 0] = True
    return kept


def _scores(raw: torch.Tensor, questions: Sequence[Question], counts: list[int]) -> torch.Tensor:
    """[n, V]: bias, penalties, masks. float64, but where greedy nodes have nothing of it: their logits."""
    parts: list[tuple[int, Edits]] = []
    first = 0
    for question, count in zip(questions, counts, strict=True):
        edits = edits_of(question.histories, question.params, raw.shape[1])
        if edits is not None:
            parts.append((first, edits))
        first += count
    if not parts:
        return raw if questions[0].params.greedy else raw.double()
    scores = raw.double()
    edits = Edits.joined(parts)
    rows, ids = (torch.from_numpy(x).to(raw.device, non_blocking=True) for x in (edits.rows, edits.ids))
    scores[rows, ids] = edits.scores(raw)
    return scores


def _columns(values: list[tuple[float, ...]], counts: list[int], device: torch.device) -> Sequence[torch.Tensor]:
    """One float64[n, 1] for each number of the tuples, repeated for each node of a question."""
    rows = np.repeat(np.array(values, dtype=np.float64), counts, axis=0)
    return torch.from_numpy(rows).to(device, non_blocking=True).T[..., None].unbind()


def _top_p(
    weights: torch.Tensor, ids: torch.Tensor | None, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(weights, ids) cut to the nucleus of each row, narrow where the laws allow it. top_p: [n, 1]."""
    p = weights / running_sums(weights)
    width = p.shape[1]
    count = min(_FIRST_CANDIDATES, width)
    while True:
        columns = top_k_ids(p, count) if count < width else None
        candidates = p if columns is None else p.gather(-1, columns)
        falling, order = candidates.sort(dim=-1, descending=True, stable=True)
        kept = top_p_kept(falling, top_p)
        if columns is None or not kept[:, -1].any():
            break
        count = min(8 * count, width)
    if columns is not None:
        weights = weights.gather(-1, columns)
        ids = columns if ids is None else ids.gather(-1, columns)
    inside = torch.zeros_like(kept).scatter_(-1, order, kept)
    return torch.where(inside, weights, 0.0), ids


def running_sums(weights: torch.Tensor) -> torch.Tensor:
    """Row sums, [n, 1]. torch.sum adds in another order when the number of rows differs; a running sum does
    not."""
    return weights.cumsum(-1)[:, -1:]
