"""Keys and values of sessions. A `KVSequence` belongs to one session; a `KVPool` says how many tokens fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.errors import ResourceExhausted
from specdec.core.tree import Ids

_NO_IDS: Ids = np.zeros(0, dtype=np.uint32)
_NO_PARENTS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_SLACK = 64  # rows allocated beyond the need, or an eighth of it: growing copies everything


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token's keys and values take: layers x 2 x heads x head_dim elements of `dtype`."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.head_dim * self.dtype.itemsize


class KVPool:
    """Accounts for every row that is allocated, in tokens. Not thread-safe: one thread drives a runner."""

    def __init__(self, shape: KVShape, capacity_tokens: int) -> None:
        self.shape = shape
        self.capacity = capacity_tokens
        self._sequences: set[KVSequence] = set()

    @property
    def kv_free(self) -> int:
        """Tokens that can still be allocated."""
        return self.capacity - sum(s.allocated for s in self._sequences)

    def new_sequence(self) -> KVSequence:
        """An empty sequence; it takes room only once something is reserved."""
        return KVSequence(self)

    def allocate(self, sequence: KVSequence, rows: int) -> int:
        """Rows to give `sequence`, at least `rows`, with slack to grow into where there is room. Slack of
        other sequences is taken back before anything is refused.

        Raises ResourceExhausted, with nothing changed for `sequence`, when `rows` cannot fit."""
        room = self.kv_free + sequence.allocated
        if rows > room:
            for other in self._sequences - {sequence}:
                other.trim()
            room = self.kv_free + sequence.allocated
        if rows > room:
            raise ResourceExhausted(
                f"{rows} tokens of KV wanted, {room} of {self.capacity} free", reason="KV_EXHAUSTED"
            )
        self._sequences.add(sequence)
        return min(room, rows + max(_SLACK, rows // 8))

    def forget(self, sequence: KVSequence) -> None:
        self._sequences.discard(sequence)


class KVSequence:
    """The rows of one session: context rows in order, then the rows of the last draft tree.

    Row i < num_context holds context token i, at position i. Tree node n > 0 (node 0, the root, is the last
    context row) is row num_context + n - 1, at position num_context - 1 + depth(n). Only rows whose forward
    has succeeded are counted: a forward that raises leaves the sequence as it was."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._data: torch.Tensor | None = None
        self._reserved = 0
        self.token_ids: Ids = _NO_IDS
        self.tree_ids: Ids = _NO_IDS
        self.tree_parents: NDArray[np.int64] = _NO_PARENTS

    @property
    def num_context(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.token_ids) + len(self.tree_ids)

    @property
    def allocated(self) -> int:
        """Rows charged to the pool."""
        return 0 if self._data is None else int(self._data.shape[3])

    @property
    def data(self) -> torch.Tensor:
        """[layers, 2, heads, allocated, head_dim]: keys at index 0 of the second axis, values at 1."""
        assert self._data is not None, "nothing was reserved for this sequence"
        return self._data

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all, and keep it until `rewind` or `release`.

        Raises ResourceExhausted before anything is written."""
        if rows > self.allocated:
            self._resize(self._pool.allocate(self, rows))
        self._reserved = max(self._reserved, rows)

    def trim(self) -> None:
        """Give back rows that hold nothing and are not reserved."""
        rows = max(self.num_rows, self._reserved)
        if rows < self.allocated:
            self._resize(rows)

    def release(self) -> None:
        """Drop everything; the sequence is empty and may be used again."""
        self._data = None
        self._reserved = 0
        self.token_ids, self.tree_ids, self.tree_parents = _NO_IDS, _NO_IDS, _NO_PARENTS
        self._pool.forget(self)

    def append(self, token_ids: Ids, tree_ids: Ids, tree_parents: NDArray[np.int64]) -> None:
        """Count rows that a forward has written: context rows, then tree rows."""
        assert not (len(token_ids) and len(self.tree_ids)), "context rows behind tree rows: rewind first"
        self.token_ids = np.concatenate([self.token_ids, token_ids])
        self.tree_ids = np.concatenate([self.tree_ids, tree_ids])
        self.tree_parents = np.concatenate([self.tree_parents, tree_parents])
        assert self.num_rows <= self.allocated, "rows beyond what was reserved"

    def rewind(self, token_ids: Ids) -> int:
        """Keep what `token_ids`, the new known context, shares with this sequence; return how many rows that
        is.

        The shared prefix of the context stays; where it goes on beyond the context held, the last tree is
        walked down and the rows of the matching path are moved into place. Everything else is dropped."""
        n = min(len(token_ids), self.num_context)
        differs = np.flatnonzero(self.token_ids[:n] != token_ids[:n])
        shared = int(differs[0]) if len(differs) else n
        path = self._matching_path(token_ids[shared:]) if shared == self.num_context else []
        if path:
            self._move([self.num_context + node - 1 for node in path], self.num_context)
        self.token_ids = np.asarray(token_ids[: shared + len(path)], dtype=np.uint32).copy()
        self.tree_ids, self.tree_parents = _NO_IDS, _NO_PARENTS
        self._reserved = 0
        return self.num_context

    def _matching_path(self, token_ids: Ids) -> list[int]:
        """Nodes of the longest path from the root whose tokens begin `token_ids`. Equal siblings (drawn with
        replacement) are followed together: their rows are equal, their subtrees need not be."""
        nodes = {0}
        deepest = 0
        for token in token_ids.tolist():
            hits = np.flatnonzero((self.tree_ids == token) & np.isin(self.tree_parents, list(nodes)))
            if not len(hits):
                break
            nodes = {int(i) + 1 for i in hits}
            deepest = min(nodes)
        path: list[int] = []
        while deepest:
            path.append(deepest)
            deepest = int(self.tree_parents[deepest - 1])
        return path[::-1]

    def _move(self, rows: list[int], to: int) -> None:
        if rows != list(range(to, to + len(rows))):
            index = torch.tensor(rows, device=self.data.device)
            self.data[:, :, :, to : to + len(rows)] = self.data.index_select(3, index)

    def _resize(self, rows: int) -> None:
        shape = self._pool.shape
        data = torch.empty((shape.layers, 2, shape.heads, rows, shape.head_dim), dtype=shape.dtype, device=shape.device)
        if self._data is not None:
            kept = self.num_rows
            data[:, :, :, :kept] = self._data[:, :, :, :kept]
        self._data = data if rows else None
