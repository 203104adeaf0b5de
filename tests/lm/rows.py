"""A KV storage that remembers what each row holds, and the check that sequences find what they wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec.core.tree import Ids
from specdec.lm.kv import KVPool, KVSequence
from specdec.lm.network import BLOCK

GARBAGE = -1


class RecordedRows:
    """One number a row instead of keys and values. What is written depends, like those, on the token and on all that
    its row can see: its path from the first token of the context."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.contents = np.full(num_blocks * BLOCK, GARBAGE, dtype=np.int64)
        self.layout = "recorded rows"
        self.block_bytes = BLOCK * self.contents.itemsize

    def read_block(self, block: int, out: NDArray[np.uint8]) -> None:
        out[:] = self.contents[block * BLOCK : (block + 1) * BLOCK].view(np.uint8)

    def write_block(self, block: int, content: NDArray[np.uint8]) -> None:
        self.contents[block * BLOCK : (block + 1) * BLOCK] = content.view(np.int64)

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        self.contents[targets] = self.contents[sources]

    def clear(self, blocks: Sequence[int]) -> None:
        self.contents.reshape(-1, BLOCK)[list(blocks)] = 0


def ids(*tokens: int) -> Ids:
    return np.array(tokens, dtype=np.uint32)


def new_pool(capacity: int) -> tuple[KVPool, RecordedRows]:
    storage = RecordedRows(-(-capacity // BLOCK))
    return KVPool(storage, capacity), storage


def contents(token_ids: Iterable[int], tree_ids: Iterable[int], parents: Iterable[int]) -> list[int]:
    """Row by row, what a sequence of this context and tree holds."""
    last, out = 0, []
    for token in token_ids:
        last = hash((last, int(token)))
        out.append(last)
    nodes = [last]
    for token, parent in zip(tree_ids, parents, strict=True):
        nodes.append(hash((nodes[int(parent)], int(token))))
    return out + nodes[1:]


def write(
    storage: RecordedRows,
    sequence: KVSequence,
    token_ids: Ids,
    tree_ids: Ids | None = None,
    parents: NDArray[np.int64] | None = None,
) -> None:
    """What a forward does: reserve, write the rows, count them."""
    tree_ids = ids() if tree_ids is None else tree_ids
    parents = np.zeros(0, dtype=np.int64) if parents is None else parents
    first, more = sequence.num_rows, len(token_ids) + len(tree_ids)
    sequence.reserve(first + more)
    whole = contents(
        [*sequence.token_ids, *token_ids], [*sequence.tree_ids, *tree_ids], [*sequence.tree_parents, *parents]
    )
    storage.contents[sequence.rows(first, first + more)] = whole[first:]
    sequence.append(token_ids, tree_ids, parents)


def held(storage: RecordedRows, sequence: KVSequence) -> list[int]:
    return [int(row) for row in storage.contents[sequence.rows(0, sequence.num_rows)]]


def expected(sequence: KVSequence) -> list[int]:
    return contents(sequence.token_ids, sequence.tree_ids, sequence.tree_parents)


def check_accounts(pool: KVPool, sequences: Iterable[KVSequence]) -> None:
    """Every block is held as often as sequences name it, and is free, idle in the cache, or held: one of the three."""
    blocks = pool._blocks
    named = np.concatenate([np.zeros(0, dtype=np.int32), *(s.blocks for s in sequences)])
    holders = np.bincount(named, minlength=len(blocks._holders))
    assert blocks._holders == holders.tolist()
    idle = np.isin(np.arange(len(holders)), list(blocks.cache._idle))
    assert (blocks._free.astype(int) + idle + (holders > 0) == 1).all()
    assert pool.kv_free == BLOCK * int((holders == 0).sum())
    assert blocks.cache._blocks == {digest: block for block, digest in blocks.cache._digests.items()}
