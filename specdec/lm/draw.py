"""What a verifier draws from its laws, in the two forms (algorithms.md, sections 0 and 5), in torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.randomness import target_noise
from specdec.core.tree import Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs
from specdec.lm import noise
from specdec.lm.law import Laws, top_k_ids


def draw_y(laws: Laws, keys: Sequence[int]) -> torch.Tensor:
    """int64[n, 1], columns of laws.p: y = argmin over tokens with p > 0 of e / p, ties to the lowest id.

    keys: n 64-bit words, `specdec.core.randomness.target_key` of each node. A point mass needs no noise and
    its key is not read."""
    if laws.p.shape[1] == 1:
        return torch.zeros_like(laws.p, dtype=torch.int64)
    if _row_by_row(laws.p):
        return torch.tensor([[_winner(*laws.row(node), key)] for node, key in enumerate(keys)])
    ids = torch.arange(laws.p.shape[1], device=laws.p.device) if laws.ids is None else laws.ids
    return race(laws.p, ids, keys)


def race(p: torch.Tensor, ids: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    """int64[n, 1], the winning column of each node, on the device of p. p: float64[n, m]; ids: int64[m] or [n, m],
    ascending; keys as in `draw_y`."""
    times = torch.where(p > 0, noise.target_noise(keys, ids) / p, torch.inf)
    return times.argmin(-1, keepdim=True)  # torch returns the first of equal ones


def _row_by_row(p: torch.Tensor) -> bool:
    """On the CPU, where numpy row by row stays in the cache and beats one block in torch."""
    return p.device.type == "cpu"


def _winner(ids: Ids, p: NDArray[np.float64], key: int) -> int:
    """One node's draw."""
    times = target_noise(key, ids)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # p = 0 never wins: e > 0; NaN is told later
        times /= p
    return int(np.argmin(times))


def looked_up(laws: Laws, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of tokens int64[n, s]: (p float64[n, s], 0 where the law has no such token; its column; whether it has one)."""
    if laws.ids is None:
        at = tokens.clamp(max=laws.p.shape[1] - 1)
        held = at == tokens
    else:
        at = torch.searchsorted(laws.ids, tokens).clamp_(max=laws.ids.shape[1] - 1)
        held = laws.ids.gather(-1, at) == tokens
    return torch.where(held, laws.p.gather(-1, at), 0.0), at, held


def outside_draws(
    laws: Laws, at: torch.Tensor, held: torch.Tensor, us: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(columns int64[n, 1] of the outside samples, tails float64[n]).

    at, held: the support of each node, as from `looked_up`. The sample is drawn by inverting the running sum of p
    over the ids outside the support, in id order, at us: float64[n, 1] in [0, 1); where rounding runs off the end, the
    last possible token. Of no meaning where the tail is 0."""
    gone = torch.where(held, 0.0, torch.inf)
    outside = laws.p.scatter_reduce(-1, at, gone.to(laws.p.dtype), "amin") if at.shape[1] else laws.p
    running = outside.cumsum(-1)
    mass = running[:, -1:]
    columns = torch.searchsorted(running, (us * mass).contiguous(), right=True)
    every = torch.arange(outside.shape[1], device=outside.device)
    last = torch.where(outside > 0, every, 0).amax(-1, keepdim=True)
    return torch.where(columns < outside.shape[1], columns, last), mass[:, 0]


def raw_logprobs(raw: torch.Tensor, drawn: Ids, inner: Sequence[int], supports: Sequence[Ids], top: int) -> Logprobs:
    """Log-softmax of the raw logits float32[n, vocabulary], float32, of whatever may be emitted.

    drawn: uint32[n]; NO_OUTSIDE gets -inf. inner, supports: nodes with a support, and their uint32[s]; ids
    beyond the vocabulary get -inf. top: how many of the likeliest per node, ties to the lowest ids."""
    table = torch.log_softmax(raw.float(), dim=-1)
    ids = top_k_ids(table, top) if top else torch.zeros((len(table), 0), dtype=torch.int64, device=table.device)
    values, order = table.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    tokens = padded([drawn[node : node + 1] for node in range(len(drawn))], NO_OUTSIDE)
    places = dict(zip(inner, supports, strict=True))
    wanted = padded([places.get(node, drawn[:0]) for node in range(len(drawn))], NO_OUTSIDE)
    known = _logprobs(table, np.concatenate([tokens, wanted], axis=1))
    return Logprobs(
        drawn=known[:, 0],
        support=tuple(known[node, 1 : 1 + len(ids)] for node, ids in zip(inner, supports, strict=True)),
        top_ids=ids.gather(-1, order).cpu().numpy().astype(np.uint32),
        top=values.cpu().numpy(),
    )


def padded(rows: Sequence[Ids], filler: int) -> NDArray[np.int64]:
    """int64[n, longest]: the rows, made equally long with `filler`."""
    out = np.full((len(rows), max(map(len, rows), default=0)), filler, dtype=np.int64)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def _logprobs(table: torch.Tensor, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """[n, s], -inf for ids beyond the vocabulary. tokens: [n, s]."""
    columns = torch.from_numpy(tokens).to(table.device, non_blocking=True)
    known = columns < table.shape[1]
    values = table.gather(-1, torch.where(known, columns, 0))
    return torch.where(known, values, -torch.inf).cpu().numpy()
