"""What a verifier draws from its laws, in the two forms (algorithms.md, sections 0 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.laws import draw
from specdec.core.randomness import target_noise
from specdec.core.tree import Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw
from specdec.lm import noise
from specdec.lm.law import Laws, top_k_ids


def draw_y(laws: Laws, keys: Sequence[int]) -> Ids:
    """uint32[n]: y = argmin over tokens with p > 0 of e / p, ties to the lowest id.

    keys: n 64-bit words, `specdec.core.randomness.target_key` of each node. A point mass needs no noise and
    its key is not read."""
    if laws.p.shape[1] == 1:
        assert laws.ids is not None
        return _host_ids(laws.ids[:, 0])
    if laws.p.device.type == "cpu":
        return np.array([_winner(*laws.row(node), key) for node, key in enumerate(keys)], dtype=np.uint32)
    ids = torch.arange(laws.p.shape[1], device=laws.p.device) if laws.ids is None else laws.ids
    return _host_ids(race(laws.p, ids, keys))


def race(p: torch.Tensor, ids: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    """int64[n], the winning token of each node, on the device of p. p: float64[n, m]; ids: int64[m] or [n, m],
    ascending; keys as in `draw_y`."""
    times = torch.where(p > 0, noise.target_noise(keys, ids) / p, torch.inf)
    winners = times.argmin(-1, keepdim=True)  # torch returns the first of equal ones
    return ids.expand(p.shape).gather(-1, winners)[:, 0]


def _winner(ids: Ids, p: NDArray[np.float64], key: int) -> int:
    """One node's draw on the CPU, where numpy row by row stays in the cache and beats one block in torch."""
    times = target_noise(key, ids)
    with np.errstate(divide="ignore"):  # p = 0 never wins: e > 0
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
