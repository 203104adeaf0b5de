from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec.core.errors import ResourceExhausted
from specdec.core.tree import DraftTree
from specdec.lm.blocks import Blocks
from specdec.lm.kv import KVSequence
from specdec.lm.network import BLOCK
from tests.lm.rows import RecordedRows, check_accounts, contents, expected, held, ids, new_pool, write

TREE = DraftTree(ids(5, 6, 7, 6, 8), np.array([0, 0, 2, 1, 3], dtype=np.int64))


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, n).astype(np.uint32)


@pytest.mark.parametrize("before", [[], list(range(100, 100 + BLOCK - 4)), list(range(100, 100 + 2 * BLOCK - 3))])
@pytest.mark.parametrize(
    ("context", "kept"),
    [
        ([1, 2, 3, 6, 7, 8, 9], [1, 2, 3, 6, 7, 8]),  # a path, moved together
        ([1, 2, 3, 5, 9], [1, 2, 3, 5]),
        ([1, 2, 3, 9, 6], [1, 2, 3]),  # nothing of the tree came true
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2], [1, 2]),
        ([1, 9, 3, 5], [1]),  # differs inside the context: the tree is of another context
        ([], []),
    ],
)
def test_rewind_keeps_the_shared_prefix_and_the_matching_path(
    before: list[int], context: list[int], kept: list[int]
) -> None:
    """Also where the tree lies across the border of a block, and where its first row is a block's first."""
    pool, storage = new_pool(1000)
    sequence = pool.new_sequence()
    write(storage, sequence, ids(*before, 1, 2, 3), TREE.token_ids, TREE.parents)
    assert sequence.rewind(ids(*before, *context)) == len(before) + len(kept)
    assert sequence.token_ids.tolist() == [*before, *kept]
    assert held(storage, sequence) == contents([*before, *kept], [], [])
    assert not len(sequence.tree_ids)
    check_accounts(pool, [sequence])


def test_rewind_follows_equal_siblings_together() -> None:
    """Drawn with replacement, siblings may carry the same token, and only one has the subtree that came true."""
    pool, storage = new_pool(1000)
    sequence = pool.new_sequence()
    write(storage, sequence, ids(1), ids(5, 5, 7), np.array([0, 0, 2], dtype=np.int64))
    assert sequence.rewind(ids(1, 5, 7, 4)) == 3
    assert held(storage, sequence) == expected(sequence)


def test_a_tree_grown_in_pieces_is_walked_as_one() -> None:
    pool, storage = new_pool(1000)
    sequence = pool.new_sequence()
    write(storage, sequence, ids(1), ids(5, 6), np.array([0, 0], dtype=np.int64))
    write(storage, sequence, ids(), ids(8), np.array([2], dtype=np.int64))
    assert sequence.rewind(ids(1, 6, 8)) == 3
    assert held(storage, sequence) == expected(sequence)


@pytest.mark.scenario("B30")
def test_a_block_that_needs_exactly_what_is_free_fits_and_one_row_more_changes_nothing() -> None:
    """A block of k + 1 rows was admitted by the room for one."""
    pool, storage = new_pool(5 * BLOCK)
    sequence, other = pool.new_sequence(), pool.new_sequence()
    write(storage, other, random_ids(BLOCK + 4, 1))
    write(storage, sequence, random_ids(8))
    assert (sequence.room, pool.kv_free) == (3 * BLOCK, 2 * BLOCK)
    with pytest.raises(ResourceExhausted):
        sequence.reserve(3 * BLOCK + 1)
    assert (sequence.allocated, other.allocated, pool.kv_free) == (BLOCK, 2 * BLOCK, 2 * BLOCK)
    sequence.reserve(3 * BLOCK)
    assert pool.kv_free == 0
    for each in (sequence, other):
        assert held(storage, each) == expected(each)
        each.release()
    assert pool.kv_free == pool.capacity == 5 * BLOCK


def test_a_budget_is_rounded_up_to_whole_blocks() -> None:
    assert new_pool(1)[0].capacity == BLOCK
    assert new_pool(BLOCK + 1)[0].capacity == 2 * BLOCK


def test_reserved_room_stays_until_the_sequence_rewinds() -> None:
    pool, _ = new_pool(4 * BLOCK)
    first, second = pool.new_sequence(), pool.new_sequence()
    first.reserve(2 * BLOCK)
    second.reserve(2 * BLOCK)
    with pytest.raises(ResourceExhausted):
        second.reserve(3 * BLOCK)
    first.rewind(ids())
    second.reserve(4 * BLOCK)
    assert (first.allocated, pool.kv_free) == (0, 0)


def test_rows_say_where_each_row_lies() -> None:
    pool, _ = new_pool(10 * BLOCK)
    sequences = [pool.new_sequence() for _ in range(2)]
    for rows in (BLOCK, 3 * BLOCK, 5 * BLOCK):
        for sequence in sequences:
            sequence.reserve(rows)
    lying = [sequence.rows(BLOCK - 2, 4 * BLOCK + 1) for sequence in sequences]
    for sequence, places in zip(sequences, lying, strict=True):
        assert places.dtype == np.int64 and sequence.blocks.dtype == np.int32
        assert [*places] == [sequence.blocks[r // BLOCK] * BLOCK + r % BLOCK for r in range(BLOCK - 2, 4 * BLOCK + 1)]
    assert not set(lying[0]) & set(lying[1])


def test_sequences_that_grow_side_by_side_stay_in_a_row() -> None:
    """What lies in a row is read as one, without a copy."""
    pool, _ = new_pool(64 * BLOCK)
    sequences = [pool.new_sequence() for _ in range(8)]
    for blocks in range(1, 5):
        for sequence in sequences:
            sequence.reserve(blocks * BLOCK)
    assert all((np.diff(sequence.blocks) == 1).all() for sequence in sequences)
    pool.new_sequence().reserve(32 * BLOCK)
    assert pool.kv_free == 0


def test_a_fresh_block_is_zero_whoever_had_it() -> None:
    pool, storage = new_pool(2 * BLOCK)
    first, second = pool.new_sequence(), pool.new_sequence()
    write(storage, first, random_ids(2 * BLOCK))
    first.release()
    second.reserve(2 * BLOCK)
    assert not storage.contents.any()


def test_a_block_that_two_share_is_copied_before_one_writes_into_it() -> None:
    pool, storage = new_pool(6 * BLOCK)
    first, second = pool.new_sequence(), pool.new_sequence()
    context = random_ids(3 * BLOCK)
    write(storage, first, context)
    second.adopt(context)
    assert (first.blocks == second.blocks).all()
    second.rewind(context[: 2 * BLOCK + 5])
    assert second.missing(2 * BLOCK + 6) == 1
    write(storage, second, random_ids(9, seed=1))
    assert (first.blocks[:2] == second.blocks[:2]).all() and first.blocks[2] != second.blocks[2]
    for each in (first, second):
        assert held(storage, each) == expected(each)
    check_accounts(pool, [first, second])


def test_a_copy_that_finds_no_room_changes_nothing() -> None:
    pool, storage = new_pool(2 * BLOCK)
    first, second = pool.new_sequence(), pool.new_sequence()
    write(storage, first, random_ids(2 * BLOCK))
    second.adopt(random_ids(2 * BLOCK))
    second.rewind(random_ids(BLOCK + 3))
    assert second.room == BLOCK
    with pytest.raises(ResourceExhausted):
        second.reserve(BLOCK + 4)
    assert (first.blocks == second.blocks).all()
    first.release()
    write(storage, second, ids(7))  # alone now, it needs no copy
    assert held(storage, second) == expected(second)
    check_accounts(pool, [first, second])


class Fleet:
    """Sequences over one pool, driven at random. Few tokens and a few common beginnings, so that contexts meet."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.random = np.random.default_rng(seed)
        self.pool, self.storage = new_pool(capacity)
        self.sequences = [self.pool.new_sequence() for _ in range(5)]
        parts = random_ids(4 * BLOCK).reshape(4, BLOCK)
        self.beginnings = [parts.ravel(), parts[[1, 0, 0, 2]].ravel()]  # equal blocks behind different ones
        self.adopted = 0

    def step(self) -> None:
        sequence = self.sequences[self.random.integers(len(self.sequences))]
        try:
            match self.random.integers(12):
                case 0:
                    sequence.release()
                case 1:
                    sequence.discard()
                case 2:
                    sequence.reserve(sequence.num_rows + int(self.random.integers(0, 3 * BLOCK)))
                case 3:
                    sequence.rewind(sequence.token_ids[: self.random.integers(0, sequence.num_context + 1)])
                case 4 | 5:
                    self._begin(sequence)
                case 6:
                    sequence.rewind(sequence.token_ids)
                    write(self.storage, sequence, self._tokens(40))
                case _:
                    self._cycle(sequence)
        except ResourceExhausted:
            pass
        self.check()

    def check(self) -> None:
        for sequence in self.sequences:
            assert sequence.num_rows <= sequence.allocated
            assert held(self.storage, sequence) == expected(sequence), "rows of another, or of another time"
        check_accounts(self.pool, self.sequences)

    def _tokens(self, most: int) -> np.ndarray:
        return self.random.integers(0, 2, self.random.integers(1, most)).astype(np.uint32)

    def _begin(self, sequence: KVSequence) -> None:
        """A session gets a context."""
        start = self.beginnings[self.random.integers(2)][: self.random.integers(1, 4 * BLOCK)]
        context = np.concatenate([start, self._tokens(2 * BLOCK)])
        sequence.rewind(context[:-1])
        self.adopted += sequence.adopt(context[:-1])
        assert (sequence.token_ids == context[: sequence.num_context]).all() and sequence.num_context < len(context)
        write(self.storage, sequence, context[sequence.num_context :])

    def _cycle(self, sequence: KVSequence) -> None:
        """Some of the last tree comes true, and a token more; a tree is verified behind it."""
        tree = DraftTree(sequence.tree_ids, sequence.tree_parents)
        path = tree.path(int(self.random.integers(0, tree.num_nodes)))
        context = np.concatenate([sequence.token_ids, ids(*path), self._tokens(2)])
        sequence.rewind(context[:-1])
        assert (sequence.token_ids == context[:-1]).all()
        if self.random.integers(2):
            self.adopted += sequence.adopt(context[:-1])
        n = int(self.random.integers(0, 20))
        parents = np.array([int(self.random.integers(0, i + 1)) for i in range(n)], dtype=np.int64)
        write(self.storage, sequence, context[-1:], self._tokens(2).repeat(n)[:n], parents)


@pytest.mark.scenario("B90")
@pytest.mark.parametrize("capacity", [9 * BLOCK, 30 * BLOCK])
def test_whatever_happens_no_sequence_sees_anothers_rows_and_no_block_is_lost(capacity: int) -> None:
    """Rows taken ahead for drafts, or for requests that ended while they waited, were never given back."""
    adopted = evictions = 0
    for seed in range(6):
        fleet = Fleet(seed, capacity)
        for _ in range(250):
            fleet.step()
        adopted, evictions = adopted + fleet.adopted, evictions + fleet.pool.evictions
        for sequence in fleet.sequences:
            sequence.release()
        fleet.check()
        assert fleet.pool.kv_free == capacity
    assert adopted > 20 * BLOCK and evictions > 20, "the histories are too tame"


def first_block(self: Blocks, block: int, digest: bytes) -> int:
    """Publishes, and never notices that the block was known."""
    self.cache._blocks[digest] = block
    self.cache._digests[block] = digest
    return block


@pytest.mark.parametrize(
    "fault",
    [
        (KVSequence, "_move", lambda self, rows, to: None),
        (Blocks, "is_shared", lambda self, block: False),  # written to without a copy
        (Blocks, "forget", lambda self, blocks: None),  # still found after it was overwritten
        (Blocks, "publish", first_block),
        (RecordedRows, "move", lambda self, sources, targets: None),
        ("specdec.lm.kv", "chain_digest", lambda parent, ids: ids.tobytes()),  # equal blocks, whatever came before
    ],
    ids=lambda fault: fault[1],
)
def test_negative_control_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch, fault: tuple[Any, str, Any]) -> None:
    owner, name, broken = fault
    if isinstance(owner, str):
        monkeypatch.setattr(f"{owner}.{name}", broken)
    else:
        monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        for seed in range(6):
            fleet = Fleet(seed, 30 * BLOCK)
            for _ in range(250):
                fleet.step()
