"""The layout of one ragged forward: which rows are computed, where they are kept, and what each may see.

All rows of all segments form one packed row with explicit positions. Each query sees its own sequence only: its
context, and for tree rows its ancestors. Everything here but `inputs` is numpy: networks bring it to where they
compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.tree import Ids
from specdec.lm.kv import KVSequence
from specdec.lm.network import BLOCK


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
    rows cannot follow tree rows: rewind first. wanted: logits of this many last rows are wanted; tapped: hidden
    states of this many last rows. inputs: float32[rows, hidden], what enters the first layer in place of the ids'
    embeddings; the ids then only name the rows, for `rewind`. All segments of a forward have inputs, or none has.
    The prefix cache knows no more than ids: a sequence of rows with inputs needs a salt of its own, and rows whose
    inputs are guesses should be tree rows, which are never shared."""

    sequence: KVSequence
    token_ids: Ids
    tree_ids: Ids = field(default_factory=_no_ids)
    tree_parents: NDArray[np.int64] = field(default_factory=_no_parents)
    wanted: int = 0
    tapped: int = 0
    inputs: torch.Tensor | None = None

    def __post_init__(self) -> None:
        assert self.rows, "a segment without rows"
        assert 0 <= self.wanted <= self.rows, f"{self.wanted} rows wanted of {self.rows}"
        assert 0 <= self.tapped <= self.rows, f"{self.tapped} rows tapped of {self.rows}"
        assert self.inputs is None or len(self.inputs) == self.rows, "every row needs its input"
        assert len(self.tree_ids) == len(self.tree_parents), "every tree row needs its parent"
        if len(self.token_ids):
            assert not len(self.sequence.tree_ids), "context rows behind tree rows: rewind first"
        assert self.sequence.num_context + len(self.token_ids), "a tree needs a root: at least one context row"

    @property
    def rows(self) -> int:
        return len(self.token_ids) + len(self.tree_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """One segment in the packed row. first, last: its packed rows. start, end: its rows in the sequence.
    blocks: int32[ceil(end / BLOCK)], the block table: row r of the sequence is slot r % BLOCK of block
    blocks[r // BLOCK]. positions: int64[end], of every row of the sequence. visible: bool[rows, end - base] for
    columns from `base` on (all earlier columns are visible), None when every row sees every column."""

    first: int
    last: int
    start: int
    end: int
    blocks: NDArray[np.int32]
    positions: NDArray[np.int64]
    base: int
    visible: NDArray[np.bool_] | None


Visible = tuple[int, NDArray[np.bool_]] | None


class RaggedBatch:
    """One forward's rows. input_ids, position_ids: int64[total]. wanted_rows: int64[sum of wanted], packed rows.
    tapped_rows: int64[sum of tapped], likewise. write_rows: int64[total], the KV row (slot of its block, blocks laid
    end to end) of every packed row. inputs: float32[total, hidden], None: the embeddings of input_ids."""

    def __init__(self, segments: Sequence[Segment], placed: list[Placed]) -> None:
        self._segments = segments
        self.placed = placed
        pairs = list(zip(segments, placed, strict=True))
        self.input_ids = np.concatenate([part for s in segments for part in (s.token_ids, s.tree_ids)]).astype(np.int64)
        self.position_ids = np.concatenate([p.positions[p.start :] for p in placed])
        self.wanted_rows = np.concatenate([np.arange(p.last - s.wanted, p.last) for s, p in pairs])
        self.tapped_rows = np.concatenate([np.arange(p.last - s.tapped, p.last) for s, p in pairs])
        self.write_rows = np.concatenate([s.sequence.rows(p.start, p.end) for s, p in pairs])
        self.inputs = _joined([s.inputs for s in segments])
        self._visible: dict[int | None, list[Visible]] = {}

    @staticmethod
    def of(segments: Sequence[Segment]) -> RaggedBatch:
        """Reserve room for every segment, then lay them out. Raises ResourceExhausted before anything is
        written."""
        assert segments, "a forward without segments"
        assert len({id(s.sequence) for s in segments}) == len(segments), "one sequence twice in a forward"
        for s in segments:
            s.sequence.reserve(s.sequence.num_rows + s.rows)
        placed: list[Placed] = []
        for s in segments:
            placed.append(_place(s, placed[-1].last if placed else 0))
        return RaggedBatch(segments, placed)

    @property
    def total(self) -> int:
        return len(self.input_ids)

    def commit(self) -> None:
        """Count the rows as held. Only after the forward has succeeded."""
        for s in self._segments:
            s.sequence.append(s.token_ids, s.tree_ids, s.tree_parents)

    def visible(self, window: int | None) -> list[Visible]:
        """Per segment: (base, bool[rows, end - base]), what each row sees of the columns from base on; it sees all
        before. None: every row sees every column. `window`: a row sees itself and the window - 1 positions before
        it. Computed once per forward."""
        if window not in self._visible:
            self._visible[window] = [_visible(p, window) for p in self.placed]
        return self._visible[window]


def _joined(inputs: list[torch.Tensor | None]) -> torch.Tensor | None:
    given = [part for part in inputs if part is not None]
    assert len(given) in (0, len(inputs)), "some segments have inputs, others have not"
    return torch.cat(given) if given else None


def _place(segment: Segment, first: int) -> Placed:
    sequence = segment.sequence
    start, base = sequence.num_rows, sequence.num_context
    end = start + segment.rows
    context = base + len(segment.token_ids)
    parents = np.concatenate([sequence.tree_parents, segment.tree_parents])
    ancestors, depths = _ancestors(parents)
    positions = np.concatenate([np.arange(context), context - 1 + depths])
    visible = None
    if segment.rows > 1 or len(parents):
        visible = np.tri(segment.rows, end - base, start - base, dtype=np.bool_)
        if len(parents):
            visible[max(0, context - start) :, context - base :] = ancestors[max(0, start - context) :]
    blocks = sequence.blocks[: -(-end // BLOCK)]
    return Placed(first, first + segment.rows, start, end, blocks, positions, base, visible)


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


def _visible(placed: Placed, window: int | None) -> Visible:
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
    return base, visible
