"""Static trees: the best of their size, by trying all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest

from draft_service.drafters.static_tree import TreeShape, best_tree

Path = tuple[int, ...]


def paths(shape: TreeShape) -> list[Path]:
    """Ranks from the root down, of each draft node."""
    out: list[Path] = [()]
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        out.append((*out[parent], rank))
    return out[1:]


def value(nodes: Sequence[Path], accuracies: Sequence[Sequence[float]]) -> float:
    return sum(float(np.prod([accuracies[d][rank] for d, rank in enumerate(path)])) for path in nodes)


def every_tree(accuracies: Sequence[Sequence[float]], size: int) -> list[tuple[Path, ...]]:
    """All sets of `size` paths that hold the path to each."""
    depths = range(1, len(accuracies) + 1)
    every = [path for d in depths for path in product(*(range(len(level)) for level in accuracies[:d]))]
    sets = combinations(every, size)
    return [nodes for nodes in sets if all(len(path) == 1 or path[:-1] in nodes for path in nodes)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [1, 2, 4])
def test_no_tree_of_its_size_is_expected_to_be_right_more_often(seed: int, size: int) -> None:
    """Also where accuracies do not fall with the rank."""
    accuracies = np.random.default_rng(seed).random((3, 2)).tolist()
    best = max(value(nodes, accuracies) for nodes in every_tree(accuracies, size))
    assert value(paths(best_tree(accuracies, size)), accuracies) == pytest.approx(best)


def test_nodes_stand_by_level_and_the_first_sibling_has_the_largest_subtree() -> None:
    shape = best_tree([[0.6, 0.3, 0.1]] * 4, 24)
    lengths = [len(path) for path in paths(shape)]
    assert lengths == sorted(lengths)
    sizes = [1] * (shape.num_draft_tokens + 1)
    for node in range(shape.num_draft_tokens, 0, -1):
        sizes[shape.parents[node - 1]] += sizes[node]
    for siblings in shape.children:
        assert [sizes[node] for node in siblings] == sorted((sizes[node] for node in siblings), reverse=True)
    assert len(set(paths(shape))) == 24


def test_a_smaller_tree_is_a_part_of_a_larger_one() -> None:
    accuracies = [[0.5, 0.2, 0.1], [0.4, 0.2], [0.3]]
    for n in range(1, 12):
        assert set(paths(best_tree(accuracies, n))) < set(paths(best_tree(accuracies, n + 1)))


def test_what_is_never_right_is_left_out() -> None:
    assert paths(best_tree([[0.5, 0.0], [0.0]], 9)) == [(0,)]
    assert best_tree([], 9).num_draft_tokens == 0


def test_a_chain_is_the_tree_of_one_candidate_per_depth() -> None:
    assert best_tree([[0.9], [0.8], [0.7]], 3) == TreeShape.chain(3)
