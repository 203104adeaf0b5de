from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdec.lm import grids
from specdec.lm.grids import GridLayout, GridShape
from tests.lm.test_padded import Bench, Plan


def grid_sizes(plans: Sequence[Plan]) -> list[tuple[int, int]]:
    return [(g.segments, g.rows) for g in GridLayout(Bench(plans).batch).shape.grids]


def test_a_long_chunk_or_a_long_context_does_not_widen_the_grid_of_the_others() -> None:
    short = (20, 0, 1, 0, "chain")
    assert grid_sizes([(0, 0, 200, 0, "chain"), *[short] * 7]) == [(7, 1), (1, 200)]
    assert grid_sizes([*[short] * 7, (900, 0, 1, 0, "chain")]) == [(7, 1), (1, 1)]


def test_segments_that_are_alike_share_one_grid() -> None:
    assert grid_sizes([(20 + i, 0, 1, 3 + i % 2, "tree") for i in range(8)]) == [(8, 5)]
    assert grid_sizes([(20, 0, 1, 3, "tree")]) == [(1, 4)]


def test_buckets_are_few_hold_what_they_are_for_and_waste_at_most_half() -> None:
    sizes = range(1, 257)
    padded = [GridShape(n, n, n, n).padded() for n in sizes]
    for n, grid in zip(sizes, padded, strict=True):
        assert min(grid.segments, grid.rows, grid.blocks, grid.tail) >= n
        assert grid.padded() == grid
        assert grid.rows < 2 * n and (grid.blocks <= 1.5 * n or n < 4)
    assert len({g.blocks for g in padded}) <= 14
    assert len({g.rows for g in padded}) <= 9
    assert GridShape(1, 1, 1, 0).padded().tail == 0


def test_buckets_of_taps_are_their_own() -> None:
    """A forward that taps nothing shares its graph with no tap, and one with inputs with none that reads ids."""
    batch = Bench([(20, 0, 1, 3, "tree")]).batch
    plain, tapped = GridLayout(batch).shape, GridLayout(batch, (1, 2)).shape
    assert (plain.tapped, plain.layers, plain.inputs) == (0, (), False)
    shapes = [plain, tapped, replace(tapped, tapped=5), replace(tapped, tapped=5, layers=(2, 1))]
    shapes += [replace(plain, inputs=True)]
    assert [s.padded().tapped for s in shapes] == [0, 0, 8, 8, 0]
    assert len({s.padded() for s in shapes}) == len(shapes)


def test_numbers_of_blocks_are_bounded_by_the_module_s_ladder() -> None:
    assert [grids._three_quarters_or_power(n) for n in range(1, 10)] == [1, 2, 3, 4, 6, 6, 8, 8, 12]
