"""The law, its draws and a verifier as they were first written: whole rows in float64, one node after another, sorted
where it says sorted. They define what `specdec.lm` and the C must answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.laws import draw
from specdec.core.randomness import Purpose, target_key, target_noise, uniforms
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw, Verification, VerifyForm
from specdec.edge.messages import OpenSession, VerifyRequest
from specdec.lm.histories import Histories
from specdec.lm.law import BadLogits, EmptyLaw


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
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :k].sort(-1).values


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
        raise BadLogits
    raise EmptyLaw


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
    """(weights, ids) with the weights outside the nucleus of each row set to 0."""
    falling, order = (weights / _sums(weights)).sort(dim=-1, descending=True, stable=True)
    kept = top_p_kept(falling, top_p)
    return torch.where(torch.zeros_like(kept).scatter_(-1, order, kept), weights, 0.0), ids


def _sums(weights: torch.Tensor) -> torch.Tensor:
    """Row sums, [n, 1]. torch.sum adds in another order when the number of rows differs; a running sum does
    not."""
    return weights.cumsum(-1)[:, -1:]


def draw_y(laws: Laws, keys: Sequence[int]) -> Ids:
    """uint32[n]: y = argmin over tokens with p > 0 of e / p, ties to the lowest id.

    keys: n 64-bit words, `specdec.core.randomness.target_key` of each node. A point mass needs no noise and
    its key is not read."""
    if laws.p.shape[1] == 1:
        assert laws.ids is not None
        return _host_ids(laws.ids[:, 0])
    return np.array([_winner(*laws.row(node), key) for node, key in enumerate(keys)], dtype=np.uint32)


def _winner(ids: Ids, p: NDArray[np.float64], key: int) -> int:
    """One node's draw on the CPU, where numpy row by row stays in the cache and beats one block in torch."""
    times = target_noise(key, ids)
    with np.errstate(divide="ignore", over="ignore"):  # p = 0 never wins: e > 0
        times /= p
    return int(ids[np.argmin(times)])


def outside_draw(ids: Ids, p: NDArray[np.float64], support: Ids, u: float) -> tuple[TargetLaw, int]:
    """The law (ids uint32[m] ascending, p float64[m]) as the p/q form sends it, and the outside sample z.

    support: uint32[s], distinct, in the drafter's order; ids beyond the vocabulary get p = 0. z is drawn by
    inverting the running sum of p over the ids outside the support, in id order, at u in [0, 1); NO_OUTSIDE
    where the tail is 0."""
    at = np.minimum(np.searchsorted(ids, support), len(ids) - 1)
    held = ids[at] == support
    inside = np.where(held, p[at], 0.0)
    outside = p.copy()
    outside[at[held]] = 0.0
    tail = float(np.float32(outside.sum()))
    z = int(ids[draw(outside, u)]) if tail > 0 else NO_OUTSIDE
    return TargetLaw(support, inside.astype(np.float32), tail), z


def child_probabilities(laws: Laws, parents: NDArray[np.int64], token_ids: Ids) -> NDArray[np.float32]:
    """float32[t]: p of each draft token under its parent's law. parents: int64[t], node indices."""
    nodes = torch.from_numpy(parents).to(laws.p.device)
    tokens = torch.from_numpy(token_ids.astype(np.int64)).to(laws.p.device)
    if laws.ids is None:
        p = laws.p[nodes, tokens]
    else:
        hits = laws.ids[nodes] == tokens[:, None]
        p = (laws.p[nodes] * hits).sum(-1)
    return p.float().cpu().numpy()


def raw_logprobs(laws: Laws, drawn: Ids, inner: Sequence[int], supports: Sequence[Ids], top: int) -> Logprobs:
    """Log-softmax of the raw logits over the vocabulary, float32, of whatever may be emitted.

    drawn: uint32[n]; NO_OUTSIDE gets -inf. inner, supports: nodes with a support, and their uint32[s]; ids
    beyond the vocabulary get -inf. top: how many of the likeliest per node, ties to the lowest ids."""
    table = torch.log_softmax(laws.raw.float(), dim=-1)
    ids = top_k_ids(table, top) if top else torch.zeros((len(table), 0), dtype=torch.int64, device=table.device)
    values, order = table.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    nodes = torch.arange(len(table), device=table.device)
    return Logprobs(
        drawn=_looked_up(table, nodes, drawn),
        support=tuple(_looked_up(table, nodes[node], ids) for node, ids in zip(inner, supports, strict=True)),
        top_ids=_host_ids(ids.gather(-1, order)),
        top=values.cpu().numpy(),
    )


def _looked_up(table: torch.Tensor, rows: torch.Tensor, ids: Ids) -> NDArray[np.float32]:
    columns = torch.from_numpy(ids.astype(np.int64)).to(table.device)
    known = columns < table.shape[1]
    values = table[rows, torch.where(known, columns, 0)]
    return torch.where(known, values, -torch.inf).cpu().numpy()


def _host_ids(ids: torch.Tensor) -> Ids:
    return ids.cpu().numpy().astype(np.uint32)


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
