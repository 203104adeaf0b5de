"""The few tokens whose scores are not simply their logits: logit bias, penalties, masks (contract.md, sampling
parameters)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.sampling import SamplingParams
from specdec.lm.histories import Histories

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NOTHING: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """Entry i concerns token ids[i] at node rows[i]; rows rise, ids rise within a row. The score is
    repeated(logit + bias[i]) - penalty[i], -inf where the penalty is inf (a mask); repeated(s) is s / repetition[i] for
    s > 0, else s * repetition[i].

    A token on a path has one penalty, from its whole count: rounding must not tell committed from drafted tokens."""

    rows: Ints
    ids: Ints
    bias: Floats
    repetition: Floats
    penalty: Floats

    @staticmethod
    def joined(parts: Sequence[tuple[int, Edits]]) -> Edits:
        """Edits of several sessions as one; each comes with the row of its first node."""
        moved = [(first + edits.rows, edits) for first, edits in parts]
        rest = (np.concatenate([getattr(e, f.name) for _, e in moved]) for f in fields(Edits) if f.name != "rows")
        return Edits(np.concatenate([rows for rows, _ in moved]), *rest)

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """float64[entries]. logits: float[n, at least vocabulary], raw."""
        rows, ids, bias, repetition, penalty = (
            torch.from_numpy(getattr(self, f.name)).to(logits.device, non_blocking=True) for f in fields(self)
        )
        scores = logits[rows, ids].double() + bias
        scores = torch.where(scores > 0, scores / repetition, scores * repetition) - penalty
        return scores.masked_fill(penalty == torch.inf, -torch.inf)


def edits_of(histories: Histories, params: SamplingParams, vocab_size: int) -> Edits | None:
    """None where every score is its logit. ids of params.logit_bias must be below vocab_size."""
    early = _early(histories, params)
    if not (params.logit_bias or params.penalised or len(early)):
        return None
    ids, counts, seen, bias = _everywhere(histories, params, vocab_size)
    drafted = _drafted(histories, vocab_size) if params.penalised else _NOTHING
    ends = np.array([id_ for id_ in params.end_ids if id_ < vocab_size], dtype=np.int64)
    banned = (early[:, None] * vocab_size + ends).ravel()
    nodes = len(histories.paths)
    places = (np.arange(nodes)[:, None] * vocab_size + ids).ravel()
    new = np.unique(np.concatenate([drafted, banned]))
    new = new[~_held(new, places)]
    at = np.searchsorted(places, new)
    places = np.insert(places, at, new)
    totals, repetition, biases = (
        np.insert(np.tile(column, nodes), at, none)
        for column, none in ((counts, 0), (np.where(seen, params.repetition_penalty, 1.0), 1.0), (bias, 0.0))
    )
    at = np.searchsorted(places, drafted)
    np.add.at(totals, at, 1)
    repetition[at] = params.repetition_penalty
    penalty = params.frequency_penalty * totals.astype(np.float64) + params.presence_penalty * (totals > 0)
    penalty[np.searchsorted(places, banned)] = np.inf
    rows = np.searchsorted(places, np.arange(nodes + 1) * vocab_size)
    rows = np.repeat(np.arange(nodes), np.diff(rows))
    return Edits(rows, places - rows * vocab_size, biases, repetition, penalty)


def _everywhere(
    histories: Histories, params: SamplingParams, vocab_size: int
) -> tuple[Ints, Ints, NDArray[np.bool_], Floats]:
    """What concerns every node: (ids rising, how often each is in this turn's output, whether it is in prompt or
    output, its bias)."""
    known = np.where(histories.context < vocab_size, histories.context, vocab_size).astype(np.int64)
    turn = known[histories.turn_start :] if params.penalised else _NOTHING
    counted, counts = np.unique(turn, return_counts=True)
    seen = np.unique(known) if params.repetition_penalty != 1.0 else counted
    biased = [id_ for id_, _ in params.logit_bias]
    assert all(id_ < vocab_size for id_ in biased), "a bias on a token that there is not"
    ids = np.union1d(seen, np.array(biased, dtype=np.int64))
    ids = ids[: np.searchsorted(ids, vocab_size)]  # what the model does not know it cannot say again
    totals = np.zeros(len(ids) + 1, dtype=np.int64)
    totals[np.searchsorted(ids, counted)] = counts
    bias = np.zeros(len(ids))
    np.add.at(bias, np.searchsorted(ids, biased), [value for _, value in params.logit_bias])
    return ids, totals[:-1], _held(ids, seen), bias


def _early(histories: Histories, params: SamplingParams) -> Ints:
    """Nodes whose next token would come before min_tokens."""
    left = params.min_tokens - (len(histories.context) - histories.turn_start)
    if left <= 0 or not params.end_ids:
        return _NOTHING
    return np.array([node for node, path in enumerate(histories.paths) if len(path) < left], dtype=np.int64)


def _drafted(histories: Histories, vocab_size: int) -> Ints:
    """node * vocab_size + token of every token on the path to every node."""
    lengths = [len(path) for path in histories.paths]
    tokens = np.fromiter(chain.from_iterable(histories.paths), dtype=np.int64, count=sum(lengths))
    return np.repeat(np.arange(len(lengths)), lengths) * vocab_size + tokens


def _held(values: Ints, sorted_values: Ints) -> NDArray[np.bool_]:
    """Which of the values are among sorted_values."""
    if not len(sorted_values):
        return np.zeros(len(values), dtype=np.bool_)
    at = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    held: NDArray[np.bool_] = sorted_values[at] == values
    return held
