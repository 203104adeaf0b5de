"""Runs of rows: cut, picked, joined, and what an acceptance leaves of them."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.core.features import NO_FEATURES, FeatureRows, VerifiedFeatures, row_bytes
from specdec.core.verification import VerifyForm


def run(offset: int, *names: int, size: int = 3) -> FeatureRows:
    """A row per name, of `size` bytes."""
    return FeatureRows(offset, len(names), b"".join(bytes([name] * size) for name in names))


def names(rows: FeatureRows) -> list[int]:
    return [rows.data[i * rows.row_bytes] for i in range(rows.rows)]


def test_cutting_equals_slicing_by_position() -> None:
    rows = run(5, 10, 11, 12, 13)
    for position in range(12):
        kept = {5 + i: 10 + i for i in range(4)}
        since, before = rows.since(position), rows.before(position)
        assert dict(enumerate(names(since), since.offset)) == {p: n for p, n in kept.items() if p >= position}
        assert dict(enumerate(names(before), before.offset)) == {p: n for p, n in kept.items() if p < position}
    for n in range(6):
        assert names(rows.tail(n)) == [10, 11, 12, 13][max(0, 4 - n) :]
        assert rows.tail(n).end == 9


@pytest.mark.parametrize(
    ("held", "later", "joined"),
    [
        (run(0, 1, 2), run(2, 3), (0, [1, 2, 3])),
        (run(0, 1, 2, 3), run(1, 8, 9), (0, [1, 8, 9])),
        (run(0, 1, 2, 3), run(1, 8), (0, [1, 8])),
        (run(4, 1, 2), run(2, 8, 9, 7), (2, [8, 9, 7])),
        (run(0, 1, 2), run(3, 9), (3, [9])),
        (run(0, 1, 2), run(2, 9, size=4), (2, [9])),
        (NO_FEATURES, run(7, 1), (7, [1])),
        (run(7, 1), NO_FEATURES, (7, [1])),
    ],
)
def test_joining_replaces_what_overlaps_and_drops_what_does_not_touch(
    held: FeatureRows, later: FeatureRows, joined: tuple[int, list[int]]
) -> None:
    result = held.joined(later)
    assert (result.offset, names(result)) == joined


def test_layers_are_picked_block_by_block() -> None:
    table = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)  # rows, layers 1, 4 and 9, bytes
    rows = FeatureRows(8, 2, table.tobytes())
    assert rows.layers([9, 1], [1, 4, 9]) == FeatureRows(8, 2, table[:, [2, 0]].tobytes())
    assert rows.layers([1, 4, 9], [1, 4, 9]) is rows
    assert row_bytes(3, 576) == 3 * 580


def test_what_is_not_whole_rows_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="5 bytes are not 2 rows"):
        FeatureRows(0, 2, bytes(5))
    with pytest.raises(AssertionError, match="1 bytes are not 0 rows"):
        FeatureRows(0, 0, bytes(1))


@pytest.mark.parametrize("context_rows", [0, 2])
@pytest.mark.parametrize("nodes", [(), (2,), (2, 3), (1, 4)])
def test_an_acceptance_leaves_the_run_of_context_root_and_accepted_nodes(
    context_rows: int, nodes: tuple[int, ...]
) -> None:
    """Rows are named 100, 101 for the context, by their node otherwise."""
    context = list(range(100, 100 + context_rows))
    every = VerifiedFeatures(run(7, *context, 0, 1, 2, 3, 4), context_rows)
    walked = VerifiedFeatures(run(7, *context, 0, *nodes), context_rows)
    for verified, form in ((every, VerifyForm.PQ), (every, VerifyForm.TYPICAL), (walked, VerifyForm.Y)):
        rows = verified.accepted(nodes, form)
        assert (rows.offset, names(rows)) == (7, [*context, 0, *nodes])
