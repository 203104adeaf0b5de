"""The layout of one ragged forward, and the attention that reads it.

All rows of all segments form one packed row [1, total] with explicit positions. `transformers` hands every
layer's queries, keys and values to `attend` (registered as attention "specdec"), which writes the keys and
values into the sequences' own rows and lets each query see its own sequence only: its context, and for tree
rows its ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface

from specdec.core.errors import ConfigError
from specdec.core.tree import Ids
from specdec.lm.kv import KVSequence

ATTENTION = "specdec"


def _no_ids() -> Ids:
    return np.zeros(0, dtype=np.uint32)


def _no_parents() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows of one sequence to compute in one forward: context rows first, then tree rows.

    token_ids: uint32[c], the context tokens that follow sequence.token_ids. tree_ids: uint32[t], draft tokens
    appended to the sequence's tree. tree_parents: int64[t], node indices in the *whole* tree of the sequence:
    0 is the root, the last context row; node n is the n-th tree token since the last context row. Context
    rows cannot follow tree rows: rewind first. wanted: logits of this many last rows are wanted."""

    sequence: KVSequence
    token_ids: Ids
    tree_ids: Ids = field(default_factory=_no_ids)
    tree_parents: NDArray[np.int64] = field(default_factory=_no_parents)
    wanted: int = 0

    def __post_init__(self) -> None:
        assert self.rows, "a segment without rows"
        assert 0 <= self.wanted <= self.rows, f"{self.wanted} rows wanted of {self.rows}"
        assert len(self.tree_ids) == len(self.tree_parents), "every tree row needs its parent"
        if len(self.token_ids):
            assert not len(self.sequence.tree_ids), "context rows behind tree rows: rewind first"
        assert self.sequence.num_context + len(self.token_ids), "a tree needs a root: at least one context row"

    @property
    def rows(self) -> int:
        return len(self.token_ids) + len(self.tree_ids)


@dataclass(frozen=True, eq=False)
class _Placed:
    """One segment in the packed row. first, last: its packed rows. start, end: its rows in the sequence.
    data: [layers, 2, heads, end, head_dim]. positions: int64[end], of every row of the sequence. visible:
    bool[rows, end - base] for columns from `base` on (all earlier columns are visible), None when every row
    sees every column."""

    first: int
    last: int
    start: int
    end: int
    data: torch.Tensor
    positions: NDArray[np.int64]
    base: int
    visible: NDArray[np.bool_] | None


class RaggedBatch:
    """One forward's rows. input_ids, position_ids: int64[1, total]; wanted_rows: int64[sum of wanted]."""

    def __init__(self, segments: Sequence[Segment], placed: list[_Placed], device: str) -> None:
        self._segments = segments
        self.placed = placed
        ids = np.concatenate([np.concatenate([s.token_ids, s.tree_ids]) for s in segments])
        positions = np.concatenate([p.positions[p.start :] for p in placed])
        wanted = np.concatenate([np.arange(p.last - s.wanted, p.last) for s, p in zip(segments, placed, strict=True)])
        self.input_ids = torch.from_numpy(ids.astype(np.int64)).to(device)[None]
        self.position_ids = torch.from_numpy(positions).to(device)[None]
        self.wanted_rows = torch.from_numpy(wanted).to(device)
        self._masks: dict[int | None, list[tuple[int, torch.Tensor] | None]] = {}

    @staticmethod
    def of(segments: Sequence[Segment], device: str) -> RaggedBatch:
        """Reserve room for every segment, then lay them out. Raises ResourceExhausted before anything is
        written."""
        assert segments, "a forward without segments"
        assert len({id(s.sequence) for s in segments}) == len(segments), "one sequence twice in a forward"
        for s in segments:
            s.sequence.reserve(s.sequence.num_rows + s.rows)
        placed: list[_Placed] = []
        for s in segments:
            placed.append(_place(s, placed[-1].last if placed else 0))
        return RaggedBatch(segments, placed, device)

    def commit(self) -> None:
        """Count the rows as held. Only after the forward has succeeded."""
        for s in self._segments:
            s.sequence.append(s.token_ids, s.tree_ids, s.tree_parents)

    def masks(self, window: int | None, dtype: torch.dtype) -> list[tuple[int, torch.Tensor] | None]:
        """Per segment: (first masked column, additive mask [rows, columns from there on]), built once per
        forward."""
        if window not in self._masks:
            device = self.input_ids.device
            self._masks[window] = [_mask(p, window, dtype, device) for p in self.placed]
        return self._masks[window]


def _place(segment: Segment, first: int) -> _Placed:
    sequence = segment.sequence
    start, base = sequence.num_rows, sequence.num_context
    end = start + segment.rows
    context = base + len(segment.token_ids)
    parents = np.concatenate([sequence.tree_parents, segment.tree_parents])
    ancestors, depths = _ancestors(parents)
    positions = np.concatenate([np.arange(context), context - 1 + depths])
    visible = None
    if segment.rows > 1 or len(parents):
        visible = np.tri(end - base, dtype=np.bool_)
        visible[context - base :, context - base :] = ancestors
        visible = visible[start - base :]
    data = sequence.data[:, :, :, :end]
    return _Placed(first, first + segment.rows, start, end, data, positions, base, visible)


def _ancestors(parents: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """bool[n, n]: draft token i sees draft token j, itself or an ancestor. int64[n]: depths, 1 under the
    root."""
    n = len(parents)
    sees = np.eye(n, dtype=np.bool_)
    depths = np.ones(n, dtype=np.int64)
    for i, parent in enumerate(parents.tolist()):
        assert 0 <= parent <= i, "a parent must come before its child"
        if parent:
            sees[i] |= sees[parent - 1]
            depths[i] += depths[parent - 1]
    return sees, depths


def _mask(
    placed: _Placed, window: int | None, dtype: torch.dtype, device: torch.device
) -> tuple[int, torch.Tensor] | None:
    base, visible = placed.base, placed.visible
    if window is not None and placed.positions.max() >= window:
        rows = placed.end - placed.start
        full = np.ones((rows, placed.end), dtype=np.bool_)
        if visible is not None:
            full[:, base:] = visible
        distance = placed.positions[placed.start :, None] - placed.positions[None, :]
        base, visible = 0, full & (distance < window)
    if visible is None or visible.all():
        return None
    mask = torch.zeros(visible.shape, dtype=dtype)
    mask.masked_fill_(torch.from_numpy(~visible), float("-inf"))
    return base, mask.to(device)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    ragged: RaggedBatch,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer. query: [1, heads, total, D], key and value: [1, kv_heads, total, D], rope
    applied. Returns [1, total, heads, D].

    The query group of each KV head is folded into rows, [kv_heads, group x rows, D], so that one pair of
    matmuls per sequence does; softmax in float32.

    Raises ConfigError for attention that is more than scaled dot products over a causal or sliding window."""
    if softcap is not None or s_aux is not None:
        raise ConfigError("model", type(module).__name__, "attention with soft caps or sinks is not served")
    layer = cast(int, module.layer_idx)
    _, heads, total, dim = query.shape
    kv_heads = key.shape[1]
    out = torch.empty((total, heads, dim), dtype=query.dtype, device=query.device)
    query = query[0] * scaling
    for placed, mask in zip(ragged.placed, ragged.masks(sliding_window, query.dtype), strict=True):
        first, last, start = placed.first, placed.last, placed.start
        keys, values = placed.data[layer, 0], placed.data[layer, 1]
        keys[:, start:] = key[0, :, first:last]
        values[:, start:] = value[0, :, first:last]
        folded = query[:, first:last].reshape(kv_heads, -1, dim)
        scores = torch.matmul(folded, keys.transpose(1, 2))
        if mask is not None:
            base, additive = mask
            scores.view(kv_heads, heads // kv_heads, last - first, -1)[..., base:] += additive
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        mixed = torch.matmul(weights, values)
        out[first:last] = mixed.view(heads, last - first, dim).transpose(0, 1)
    return out[None], None


AttentionInterface.register(ATTENTION, attend)
