"""Keys and values of sessions, in blocks. A `KVSequence` belongs to one session; a `KVPool` shares out the blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec.core.tree import Ids
from specdec.lm.blocks import Blocks
from specdec.lm.exchange import BlockExchange, BlockKey, block_key
from specdec.lm.network import BLOCK, KVStorage
from specdec.lm.prefix_cache import Digest, chain_digest

_NO_IDS: Ids = np.zeros(0, dtype=np.uint32)
_NO_PARENTS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_NO_BLOCKS: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


def num_blocks(rows: int) -> int:
    """Blocks that hold `rows` rows."""
    return -(-rows // BLOCK)


class KVPool:
    """Where the sequences of a runner have their blocks from. Not thread-safe: one thread drives a runner."""

    def __init__(self, storage: KVStorage, capacity_tokens: int, model: str = "") -> None:
        """capacity_tokens: tokens that fit, rounded up to whole blocks. model: the fingerprint of
        whose keys and values they are."""
        blocks = num_blocks(capacity_tokens)
        self.capacity = blocks * BLOCK
        self._blocks = Blocks(storage, blocks)
        self.exchange = BlockExchange(self._blocks, model)

    @property
    def kv_free(self) -> int:
        """Tokens that can still be allocated; blocks that only the prefix cache keeps are given up for them."""
        return self._blocks.num_free * BLOCK

    @property
    def evictions(self) -> int:
        """Blocks that the prefix cache has given up so far."""
        return self._blocks.cache.evictions

    def new_sequence(self, salt: bytes = b"") -> KVSequence:
        """An empty sequence; it takes room only once something is reserved. Only sequences of one salt share blocks."""
        return KVSequence(self._blocks, self.exchange.root(salt))


class KVSequence:
    """The rows of one session: context rows in order, then the rows of the last draft tree.

    Row i < num_context holds context token i, at position i. Tree node n > 0 (node 0, the root, is the last
    context row) is row num_context + n - 1, at position num_context - 1 + depth(n). Only rows whose forward
    has succeeded are counted: a forward that raises leaves the sequence as it was.

    blocks: int32[allocated / BLOCK], new at every change; row i lies in block i // BLOCK of them. A block full of
    context is shared with whoever has the same context; a block that is written to is this sequence's own.
    adopted: how many of its tokens were found in the prefix cache since the last `rewind`."""

    def __init__(self, pool: Blocks, root: Digest) -> None:
        self._pool = pool
        self._root = root
        self._digests: list[Digest] = []  # of the blocks that are full of context
        self.blocks = _NO_BLOCKS
        self.token_ids: Ids = _NO_IDS
        self.tree_ids: Ids = _NO_IDS
        self.tree_parents: NDArray[np.int64] = _NO_PARENTS
        self.adopted = 0

    @property
    def num_context(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.token_ids) + len(self.tree_ids)

    @property
    def allocated(self) -> int:
        """Rows of the blocks it holds, shared ones included."""
        return len(self.blocks) * BLOCK

    @property
    def room(self) -> int:
        """Rows in all that `reserve` could make room for now."""
        return self.allocated + BLOCK * (self._pool.num_free - self._shares_tail)

    @property
    def digests(self) -> Sequence[Digest]:
        """Of the blocks that are full of context."""
        return self._digests

    def key(self, block: int) -> BlockKey:
        """Of one of the blocks that are full of context."""
        parent = self._digests[block - 1] if block else self._root
        return block_key(parent, self.token_ids[block * BLOCK : (block + 1) * BLOCK])

    def rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """Where its rows from `start` to `stop` lie in the storage."""
        return self._lie(np.arange(start, stop))

    def missing(self, rows: int) -> int:
        """Blocks that `reserve(rows)` has to take."""
        if rows <= self.num_rows:
            return 0
        return max(0, num_blocks(rows) - len(self.blocks)) + self._shares_tail

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all, and keep it until `rewind` or `release`. A partly filled block that others
        hold too is copied first.

        Raises ResourceExhausted, with nothing changed."""
        if rows <= self.num_rows:
            return
        copies, tail = self._shares_tail, self.blocks[self.num_rows // BLOCK :]
        taken = self._pool.take(self.missing(rows), int(self.blocks[-1]) if len(self.blocks) else None)
        if copies:
            assert len(tail) == 1, "room behind a block that must be copied"
            held = self._lie(np.arange(self.num_rows // BLOCK * BLOCK, self.num_rows))
            self._pool.storage.move(held, taken[0] * BLOCK + held % BLOCK)
            self._pool.drop(tail.tolist())
        else:
            self._pool.forget(tail.tolist())  # what it was known for is overwritten
        kept = self.blocks[: len(self.blocks) - copies]
        self.blocks = np.concatenate([kept, np.array(taken, dtype=np.int32)])

    def release(self) -> None:
        """Drop everything; the sequence is empty and may be used again. Its full blocks stay in the prefix cache."""
        self._keep(_NO_IDS)

    def discard(self) -> None:
        """Release, and let nobody find its blocks: their contents are not to be trusted."""
        self._pool.forget(self.blocks.tolist())
        self.release()

    def append(self, token_ids: Ids, tree_ids: Ids, tree_parents: NDArray[np.int64]) -> None:
        """Count rows that a forward has written: context rows, then tree rows."""
        assert not (len(token_ids) and len(self.tree_ids)), "context rows behind tree rows: rewind first"
        self.token_ids = np.concatenate([self.token_ids, token_ids])
        self.tree_ids = np.concatenate([self.tree_ids, tree_ids])
        self.tree_parents = np.concatenate([self.tree_parents, tree_parents])
        assert self.num_rows <= self.allocated, "rows beyond what was reserved"
        self._publish()

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
        self._keep(token_ids[: shared + len(path)])
        return self.num_context

    def adopt(self, token_ids: Ids) -> int:
        """Go on with what the prefix cache has of `token_ids`, of which this sequence holds the first ones (`rewind`
        first). Returns how many tokens more it holds now."""
        assert not len(self.tree_ids), "what is found goes behind the context: rewind first"
        before, full = self.num_context, len(self._digests)
        found: list[int] = []
        for end in range((full + 1) * BLOCK, len(token_ids) + 1, BLOCK):
            digest = self._next_digest(token_ids[end - BLOCK : end])
            if (block := self._pool.find(digest)) is None:
                break
            self._digests.append(digest)
            found.append(block)
        if found:
            self._pool.drop(self.blocks[full:].tolist())  # a block that was full in part
            self.blocks = np.concatenate([self.blocks[:full], np.array(found, dtype=np.int32)])
            self.token_ids = np.asarray(token_ids[: self.allocated], dtype=np.uint32).copy()
        self.adopted += self.num_context - before
        return self.num_context - before

    @property
    def _shares_tail(self) -> bool:
        """Whether the next row would go into a block that others hold too."""
        return self.num_rows % BLOCK > 0 and self._pool.is_shared(int(self.blocks[self.num_rows // BLOCK]))

    def _lie(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.blocks[rows // BLOCK].astype(np.int64) * BLOCK + rows % BLOCK

    def _next_digest(self, token_ids: Ids) -> Digest:
        return chain_digest(self._digests[-1] if self._digests else self._root, token_ids)

    def _publish(self) -> None:
        """Let others find the blocks that have become full of context."""
        full = self.num_context // BLOCK
        if full == len(self._digests):
            return
        blocks = self.blocks.copy()
        for i in range(len(self._digests), full):
            self._digests.append(self._next_digest(self.token_ids[i * BLOCK : (i + 1) * BLOCK]))
            blocks[i] = self._pool.publish(int(blocks[i]), self._digests[-1])
        self.blocks = blocks

    def _keep(self, token_ids: Ids) -> None:
        """Context rows of these tokens, which are in place, and no others. Deep blocks go first and are evicted first:
        they are worth nothing without those before them."""
        self.token_ids = np.array(token_ids, dtype=np.uint32)
        self.tree_ids, self.tree_parents = _NO_IDS, _NO_PARENTS
        kept = num_blocks(self.num_context)
        self._pool.drop(self.blocks[kept:].tolist()[::-1])
        self.blocks = self.blocks[:kept].copy()
        del self._digests[self.num_context // BLOCK :]
        self.adopted = 0
        self._publish()

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
            self._pool.storage.move(self._lie(np.array(rows)), self.rows(to, to + len(rows)))
