"""Attention over padded grids against attention segment by segment, on the same keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from specdec.lm.attention import RaggedAttention
from specdec.lm.cuda_graphs import PaddedKV
from specdec.lm.grids import ForwardShape, GridLayout
from specdec.lm.kv import KVPool
from specdec.lm.network import BLOCK, KVShape
from specdec.lm.padded import PaddedAttention
from specdec.lm.ragged import RaggedBatch, Segment
from specdec.lm.staging import Staging

KV_HEADS, DIM, LAYERS = 2, 16, 2
SHAPE = KVShape(LAYERS, KV_HEADS, DIM, torch.float32, torch.device("cpu"))
WINDOWS = (None, 12)
SCALING = 0.25

# Per segment: context tokens held, tree rows held, new context tokens, new tree rows, "chain" or "tree".
Plan = tuple[int, int, int, int, str]
BATCHES: dict[str, list[Plan]] = {
    "one row each": [(5, 0, 1, 0, "tree"), (40, 0, 1, 0, "tree"), (0, 0, 1, 0, "tree"), (31, 0, 1, 0, "tree")],
    "chains": [(33, 0, 1, 4, "chain"), (7, 0, 1, 4, "chain"), (90, 0, 2, 3, "chain")],
    "trees": [(20, 0, 1, 9, "tree"), (64, 0, 1, 5, "tree"), (3, 0, 2, 14, "tree")],
    "trees that grow": [(20, 6, 0, 5, "tree"), (35, 9, 0, 3, "tree")],
    "chunks of prompts": [(0, 0, 70, 0, "tree"), (64, 0, 33, 0, "tree")],
    "everything": [
        *[(n, 0, 1, 0, "tree") for n in (3, 9, 17, 40)],
        *[(30, 0, 1, 7, "tree"), (11, 0, 1, 5, "chain"), (25, 4, 0, 6, "tree")],
        *[(0, 0, 90, 0, "tree"), (50, 0, 20, 6, "tree")],
    ],
}


class Bench:
    """Sequences over one storage, filled with random keys and values."""

    def __init__(self, plans: Sequence[Plan], heads: int = 4, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.heads = heads
        self.storage = PaddedKV(SHAPE, 64)
        self.storage.data[:] = self.noise(*self.storage.data.shape)
        pool = KVPool(self.storage, 64 * BLOCK)
        sequences = [pool.new_sequence() for _ in plans]
        held = []
        for sequence, (context, tree, _, _, kind) in zip(sequences, plans, strict=True):
            if context:
                held.append(Segment(sequence, self.ids(context), self.ids(tree), self.parents(0, tree, kind)))
        if held:
            RaggedBatch.of(held).commit()
        self.batch = RaggedBatch.of(
            [
                Segment(s, self.ids(rows), self.ids(new), self.parents(tree, new, kind), wanted=1)
                for s, (_, tree, rows, new, kind) in zip(sequences, plans, strict=True)
            ]
        )
        total = self.batch.total
        self.rows = [
            (self.noise(total, heads, DIM), self.noise(total, KV_HEADS, DIM), self.noise(total, KV_HEADS, DIM))
            for _ in range(LAYERS)
        ]

    def ids(self, n: int) -> np.ndarray:
        return self.random.integers(0, 97, n).astype(np.uint32)

    def parents(self, held: int, n: int, kind: str) -> np.ndarray:
        nodes = range(held, held + n)
        return np.array([i if kind == "chain" else self.random.integers(0, i + 1) for i in nodes], dtype=np.int64)

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def padded(self, *, buckets: bool = True, **options: int) -> list[torch.Tensor]:
        """Per layer, what the padded attention makes of the batch."""
        layout = GridLayout(self.batch)
        shape = layout.shape.padded() if buckets else layout.shape
        staging = Staging(shape.fields(), torch.device("cpu"))
        layout.fill(staging.arrays(), shape, self.storage.scratch)
        staging.send()
        attention = PaddedAttention(shape, staging.tensors, self.storage.data, WINDOWS, SCALING, **options)
        total = self.batch.total
        return [
            attention(layer, *(torch.cat([x, x.new_zeros(shape.total - total, *x.shape[1:])]) for x in rows))[:total]
            for layer, rows in enumerate(self.rows)
        ]

    def ragged(self) -> list[torch.Tensor]:
        attention = RaggedAttention(self.batch, self.storage, WINDOWS, SCALING)
        return [attention(layer, *rows) for layer, rows in enumerate(self.rows)]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.allclose(x, y, rtol=0, atol=1e-5) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("heads", [2, 4, 6])
@pytest.mark.parametrize("buckets", [False, True], ids=["exact", "buckets"])
@pytest.mark.parametrize("name", BATCHES)
def test_grids_attend_as_segments_do(name: str, buckets: bool, heads: int) -> None:
    """Padded first: what it fails to write, the other cannot have written before."""
    bench = Bench(BATCHES[name], heads)
    assert equal(bench.padded(buckets=buckets), bench.ragged())


@pytest.mark.parametrize("seed", range(12))
def test_grids_attend_as_segments_do_for_random_batches(seed: int) -> None:
    random = np.random.default_rng(seed)
    plans: list[Plan] = []
    for _ in range(int(random.integers(1, 9))):
        tree = int(random.integers(0, 3)) * 4
        context = int(random.integers(1 if tree else 0, 100))
        rows = 0 if tree else int(random.integers(1, 50) if random.random() < 0.3 else 1)
        new = int(random.integers(0 if rows else 1, 12))
        plans.append((context, tree, rows, new, str(random.choice(["chain", "tree"]))))
    bench = Bench(plans, seed=seed)
    assert equal(bench.padded(), bench.ragged())


@pytest.mark.parametrize("most_mask", [1, 1000, 5000])
def test_masks_made_in_parts_change_nothing(most_mask: int) -> None:
    bench = Bench(BATCHES["everything"])
    assert equal(bench.padded(most_mask=most_mask), bench.ragged())


def test_only_the_batch_s_rows_and_the_spare_block_are_written() -> None:
    bench = Bench(BATCHES["everything"])
    before = bench.storage.data.clone()
    bench.padded()
    changed = (bench.storage.data != before).any(-1).any(0).any(0).any(0).nonzero()[:, 0].tolist()
    scratch = set(range(bench.storage.scratch * BLOCK, (bench.storage.scratch + 1) * BLOCK))
    assert set(bench.batch.write_rows.tolist()) <= set(changed)
    assert set(changed) - set(bench.batch.write_rows.tolist()) <= scratch
    assert set(changed) & scratch, "no padding rows: nothing shown"


def test_nan_of_one_sequence_or_of_the_spare_block_reaches_no_other() -> None:
    bench = Bench(BATCHES["everything"])
    sick = bench.batch.placed[4]
    bench.storage.data[:, :, :, bench.storage.scratch * BLOCK :] = torch.nan
    bench.storage.data[:, 1, :, int(sick.blocks[0]) * BLOCK] = torch.nan
    out = bench.padded()
    healthy = torch.ones(bench.batch.total, dtype=torch.bool)
    healthy[sick.first : sick.last] = False
    assert all(bool(x[~healthy].isnan().any()) for x in out[:1]), "the fault was not seen at all"
    assert all(bool(x[healthy].isfinite().all()) for x in out)


@pytest.mark.parametrize("field", ["tail", "limit"])
def test_negative_control_a_row_that_sees_too_little_or_too_much_is_seen(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = GridLayout.fill

    def faulty(self: GridLayout, arrays: dict[str, np.ndarray], shape: ForwardShape, scratch: int) -> None:
        fill(self, arrays, shape, scratch)
        array = arrays[f"0.{field}"]
        array[...] = 0 if field == "tail" else array + 1

    monkeypatch.setattr(GridLayout, "fill", faulty)
    bench = Bench(BATCHES["trees"])
    assert not equal(bench.padded(), bench.ragged())
