from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.core.errors import ResourceExhausted
from specdec.core.tree import DraftTree
from specdec.lm.kv import KVPool, KVSequence, KVShape

SHAPE = KVShape(layers=2, heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu"))


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.uint32)


def fill(sequence: KVSequence, context: np.ndarray, tree: DraftTree) -> None:
    """Append rows whose keys and values say which row they are: a context row its token, a tree row 100 x its node."""
    first = sequence.num_rows
    sequence.reserve(first + len(context) + tree.num_draft_tokens)
    rows = [*context.tolist(), *(100 * (n + 1) for n in range(tree.num_draft_tokens))]
    sequence.data[:, :, :, first : first + len(rows)] = torch.tensor(rows, dtype=torch.float32)[:, None]
    sequence.append(context, tree.token_ids, tree.parents)


def rows(sequence: KVSequence) -> list[float]:
    held = sequence.data[:, :, :, : sequence.num_rows]
    assert (held == held[0, 0]).all()
    return held[0, 0, 0, :, 0].tolist()


TREE = DraftTree(ids(5, 6, 7, 6, 8), np.array([0, 0, 2, 1, 3], dtype=np.int64))


@pytest.mark.parametrize(
    ("context", "held", "kept"),
    [
        ([1, 2, 3, 6, 7, 8, 9], [1, 2, 3, 6, 7, 8], [1, 2, 3, 200, 300, 500]),  # a path, moved together
        ([1, 2, 3, 5, 9], [1, 2, 3, 5], [1, 2, 3, 100]),
        ([1, 2, 3, 9, 6], [1, 2, 3], [1, 2, 3]),  # nothing of the tree came true
        ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
        ([1, 2], [1, 2], [1, 2]),
        ([1, 9, 3, 5], [1], [1]),  # differs inside the context: the tree is of another context
        ([], [], []),
    ],
)
def test_rewind_keeps_the_shared_prefix_and_the_matching_path(
    context: list[int], held: list[int], kept: list[float]
) -> None:
    sequence = KVPool(SHAPE, 1000).new_sequence()
    fill(sequence, ids(1, 2, 3), TREE)
    assert sequence.rewind(ids(*context)) == len(held)
    assert sequence.token_ids.tolist() == held
    assert rows(sequence) == kept
    assert not len(sequence.tree_ids)


def test_rewind_follows_equal_siblings_together() -> None:
    """Drawn with replacement, siblings may carry the same token, and only one has the subtree that came true."""
    tree = DraftTree(ids(5, 5, 7), np.array([0, 0, 2], dtype=np.int64))
    sequence = KVPool(SHAPE, 1000).new_sequence()
    fill(sequence, ids(1), tree)
    assert sequence.rewind(ids(1, 5, 7, 4)) == 3
    assert rows(sequence) == [1, 200, 300]


def test_a_tree_grown_in_pieces_is_walked_as_one() -> None:
    sequence = KVPool(SHAPE, 1000).new_sequence()
    fill(sequence, ids(1), DraftTree(ids(5, 6), np.array([0, 0], dtype=np.int64)))
    sequence.reserve(4)
    sequence.data[:, :, :, 3] = 300
    sequence.append(ids(), ids(8), np.array([2], dtype=np.int64))
    assert sequence.rewind(ids(1, 6, 8)) == 3
    assert rows(sequence) == [1, 200, 300]


@pytest.mark.scenario("B30")
def test_a_block_that_needs_exactly_what_is_free_fits_and_one_row_more_changes_nothing() -> None:
    """A block of k + 1 rows was admitted by the room for one."""
    pool = KVPool(SHAPE, 20)
    sequence, other = pool.new_sequence(), pool.new_sequence()
    fill(other, ids(1, 2, 3, 4), DraftTree.chain([]))
    fill(sequence, ids(*range(1, 9)), DraftTree.chain([]))
    before = (rows(sequence), rows(other), other.allocated)
    with pytest.raises(ResourceExhausted):
        sequence.reserve(17)
    assert (rows(sequence), rows(other), other.allocated) == (*before[:2], 4)
    sequence.reserve(16)
    assert pool.kv_free == 0
    sequence.release()
    other.release()
    assert pool.kv_free == 20


def test_room_that_was_reserved_is_not_taken_back_by_a_neighbour() -> None:
    pool = KVPool(SHAPE, 100)
    first, second = pool.new_sequence(), pool.new_sequence()
    first.reserve(40)
    second.reserve(60)
    assert (first.allocated, second.allocated) == (40, 60)
    first.rewind(ids())
    second.reserve(100)
    assert (first.allocated, pool.kv_free) == (0, 0)


@pytest.mark.scenario("B90")
def test_a_thousand_random_cycles_leave_exactly_the_room_there_was() -> None:
    """Rows taken ahead for drafts, or for requests that ended while they waited, were never given back."""
    generator = np.random.default_rng(0)
    pool = KVPool(SHAPE, 400)
    sequences: list[KVSequence] = []
    for _ in range(1000):
        if len(sequences) < 4:
            sequences.append(pool.new_sequence())
        sequence = sequences[generator.integers(len(sequences))]
        match generator.integers(4):
            case 0:
                sequence.release()
                sequences = [s for s in sequences if s is not sequence]
            case 1:
                sequence.rewind(ids(*generator.integers(0, 3, generator.integers(0, 30))))
            case _:
                try:
                    sequence.rewind(sequence.token_ids)
                    fill(sequence, ids(*generator.integers(0, 3, 9)), DraftTree.chain([1, 2, 0]))
                except ResourceExhausted:
                    sequence.release()
        assert pool.kv_free == 400 - sum(s.allocated for s in sequences) >= 0
        assert all(s.num_rows <= s.allocated for s in sequences)
    for sequence in sequences:
        sequence.release()
    assert pool.kv_free == 400
