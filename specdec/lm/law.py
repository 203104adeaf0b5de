"""Logits -> law: the one function that both services use, so that p and q mean the same.

Order (contract.md, sampling parameters): logit bias, repetition, presence and frequency penalties -> masks ->
temperature -> top-k -> top-p -> min-p. All in float64; ties go to the lowest ids everywhere. Every step works
row by row with the same arithmetic however many rows there are, and a token counts the same whether it is
committed or on the path to a node: a node's law is bit for bit the law that plain decoding would see with the
same logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.errors import InvalidArgument, ReplicaFault
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree, Ids

_FIRST_CANDIDATES = 1024  # of a top-p search; a full sort only where a law is very flat


class EmptyLaw(InvalidArgument):
    """The parameters leave no token that could be emitted."""

    reason = "EMPTY_LAW"


class BadLogits(ReplicaFault):
    """The model computed NaN or +inf."""

    reason = "NAN_LOGITS"


@dataclass(frozen=True, eq=False)
class Histories:
    """What penalties and min_tokens count, for the nodes of one session.

    context: uint32[n], prompt and output committed so far; turn_start: index of this turn's first output
    token. paths: per node, the draft tokens between the context and the node's next token."""

    context: Ids
    turn_start: int
    paths: tuple[tuple[int, ...], ...]

    @staticmethod
    def of_tree(context: Ids, turn_start: int, tree: DraftTree) -> Histories:
        """Histories of all nodes of `tree`, in node order."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
            paths.append((*paths[parent], token))
        return Histories(context, turn_start, tuple(paths))


@dataclass(frozen=True, eq=False)
class Laws:
    """Next-token laws of n nodes. p: float64[n, m], rows summing to 1. ids: int64[n, m], ascending in each
    row, the tokens that the columns of p stand for; None: m is the vocabulary and column v is token v.
    Columns may have p = 0. raw: float32[n, vocabulary], the model's logits, untouched."""

    p: torch.Tensor
    ids: torch.Tensor | None
    raw: torch.Tensor

    def row(self, node: int) -> tuple[Ids, NDArray[np.float64]]:
        """(ids uint32[m] ascending, p float64[m]) of one node, in host memory."""
        p = self.p[node].cpu().numpy()
        ids = np.arange(len(p)) if self.ids is None else self.ids[node].cpu().numpy()
        return ids.astype(np.uint32), p


def target_laws(logits: torch.Tensor, histories: Histories, params: SamplingParams, vocab_size: int) -> Laws:
    """The laws of one session's nodes.

    logits: float32[n, padded vocabulary], raw. vocab_size: the tokenizer's; ids from there on have
    probability 0. Greedy (temperature below GREEDY_BELOW) gives point masses.

    Raises EmptyLaw (some node has no possible token) or BadLogits."""
    assert len(logits) == len(histories.paths), "one history per node"
    raw = logits[:, :vocab_size]
    _check(raw.amax(-1))
    scores = _processed(raw, histories, params)
    _check(scores.amax(-1))
    if params.greedy:
        best = scores.argmax(-1, keepdim=True)  # torch returns the first of equal ones
        return Laws(torch.ones_like(best, dtype=torch.float64), best, raw)
    ids = None
    if 0 < params.top_k < vocab_size:
        ids = top_k_ids(scores, params.top_k)
        scores = scores.gather(-1, ids)
    scores = scores / params.temperature
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    if params.top_p < 1.0:
        weights, ids = _top_p(weights, ids, params.top_p)
    if params.min_p > 0.0:
        weights = torch.where(weights >= params.min_p, weights, 0.0)  # the likeliest token weighs exactly 1
    return Laws(weights / _sums(weights), ids, raw)


def top_k_ids(values: torch.Tensor, k: int) -> torch.Tensor:
    """int64[n, k], ascending: columns of the k largest values of each row of values[n, m], ties to the
    lowest."""
    top, columns = torch.topk(values, k, sorted=False)
    least = top.amin(-1, keepdim=True)
    tied = (values == least).sum(-1) != (top == least).sum(-1)
    for row in tied.nonzero()[:, 0].tolist():
        over = (values[row] > least[row]).nonzero()[:, 0]
        equal = (values[row] == least[row]).nonzero()[:, 0]
        columns[row] = torch.cat([over, equal[: k - len(over)]])
    return columns.sort(-1).values


def top_p_kept(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """bool[n, m]: the smallest prefix with mass >= top_p of p[n, m], whose rows fall. A mass of exactly top_p
    suffices."""
    before = p.cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    kept: torch.Tensor = before < top_p
    kept[:, 0] = True
    return kept


def _check(best: torch.Tensor) -> None:
    """best: the largest score of each row; a NaN anywhere makes it NaN."""
    if torch.isfinite(best).all():
        return
    if (torch.isnan(best) | (best == torch.inf)).any():
        raise BadLogits("the model computed NaN or +inf")
    raise EmptyLaw("logit_bias", "-inf", "together with the other parameters it leaves no possible token")


def _processed(raw: torch.Tensor, histories: Histories, params: SamplingParams) -> torch.Tensor:
    """float64[n, V]: bias, penalties, masks."""
    scores = raw.double()
    vocab_size = raw.shape[1]
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        bias = torch.tensor(values, dtype=torch.float64, device=raw.device)
        scores.index_add_(1, torch.tensor(ids, device=raw.device), bias.expand(len(scores), -1))
    if params.penalised:
        _penalise(scores, histories, params)
    output = len(histories.context) - histories.turn_start
    early = [i for i, path in enumerate(histories.paths) if output + len(path) < params.min_tokens]
    ends = [id_ for id_ in params.end_ids if id_ < vocab_size]
    if early and ends:
        rows = torch.tensor(early, device=raw.device)
        scores[rows[:, None], torch.tensor(ends, device=raw.device)] = -torch.inf
    return scores


def _penalise(scores: torch.Tensor, histories: Histories, params: SamplingParams) -> None:
    """Penalise, in place, the tokens of context and path. A token on a path gets one penalty from its whole
    count, never a second one on top: rounding must not tell committed from drafted tokens."""
    turn = histories.context[histories.turn_start :]
    counts = np.bincount(turn, minlength=scores.shape[1])
    common = np.unique(turn if params.repetition_penalty == 1.0 else histories.context).astype(np.int64)
    drafted = [
        (row, token, counts[token] + path.count(token))
        for row, path in enumerate(histories.paths)
        for token in set(path)
    ]
    columns, in_turn = (torch.from_numpy(x).to(scores.device) for x in (common, counts[common]))
    rows, tokens, totals = torch.tensor(drafted, dtype=torch.int64, device=scores.device).view(-1, 3).T
    unpenalised = scores[rows, tokens]
    scores[:, columns] = _penalised(scores[:, columns], in_turn, params)
    scores[rows, tokens] = _penalised(unpenalised, totals, params)


def _penalised(scores: torch.Tensor, counts: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Scores of tokens that occur in prompt or output; counts: how often in this turn's output, the path
    included."""
    r = params.repetition_penalty
    if r != 1.0:
        scores = torch.where(scores > 0, scores / r, scores * r)
    return scores - (params.frequency_penalty * counts.double() + params.presence_penalty * (counts > 0).double())


def _top_p(weights: torch.Tensor, ids: torch.Tensor | None, top_p: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(weights, ids) cut to the nucleus of each row, narrow where the law allows it."""
    p = weights / _sums(weights)
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


def _sums(weights: torch.Tensor) -> torch.Tensor:
    """Row sums, [n, 1]. torch.sum adds in another order when the number of rows differs; a running sum does
    not."""
    return weights.cumsum(-1)[:, -1:]
