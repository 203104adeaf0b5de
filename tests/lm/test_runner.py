from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from specdec.core.errors import ResourceExhausted
from specdec.core.tree import DraftTree
from specdec.lm.kv import KVSequence
from specdec.lm.network import BLOCK, KVStorage, Network
from specdec.lm.ragged import RaggedBatch
from specdec.lm.runner import Runner, Segment
from tests.lm.served import V, close, fresh_logits, random_ids, stock_logits
from tests.tiny_models import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunks", [[40], [13, 27], [1] * 40, [8] * 5, [39, 1]])
def test_logits_of_a_chunked_context_equal_those_of_transformers(
    runners: dict[str, Runner], stock: dict[str, Any], family: str, chunks: list[int]
) -> None:
    runner, ids = runners[family], random_ids(40)
    sequence = runner.new_sequence()
    parts = []
    for n in chunks:
        held = sequence.num_context
        parts += runner.forward([Segment(sequence, ids[held : held + n], wanted=n)])
    sequence.release()
    assert close(torch.cat(parts), stock_logits(stock[family], ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_at_every_node_of_a_tree_equal_those_of_its_path(
    runners: dict[str, Runner], stock: dict[str, Any], family: str
) -> None:
    """Also when the tree grows level by level, and beside a prefill chunk and a chain of other sequences."""
    runner, generator = runners[family], np.random.default_rng(1)
    context = random_ids(21)
    parents = np.array([int(generator.integers(0, i + 1)) for i in range(14)], dtype=np.int64)
    tree = DraftTree(random_ids(14, seed=2), parents)
    whole, grown, other = runner.new_sequence(), runner.new_sequence(), runner.new_sequence()
    logits, _, _ = runner.forward(
        [
            Segment(whole, context, tree.token_ids, tree.parents, wanted=tree.num_nodes),
            Segment(other, random_ids(9, seed=3)),
            Segment(grown, context[:20]),
        ]
    )
    pieces = []
    for first, last in ((0, 5), (5, 6), (6, 14)):
        token_ids = context[20:] if not first else context[:0]
        cut = slice(first, last)
        wanted = last - first + len(token_ids)
        pieces += runner.forward([Segment(grown, token_ids, tree.token_ids[cut], parents[cut], wanted=wanted)])
    assert close(torch.cat(pieces), logits)
    for node in range(tree.num_nodes):
        path = np.concatenate([context, np.array(tree.path(node), dtype=np.uint32)])
        assert close(logits[node], stock_logits(stock[family], path)[-1])
    for sequence in (whole, grown, other):
        sequence.release()


class Script:
    """A random history of one sequence: extensions, roll-backs and kept tree paths."""

    def __init__(self, runner: Runner, seed: int) -> None:
        self.runner = runner
        self.random = np.random.default_rng(seed)
        self.sequence = runner.new_sequence()
        self.context = random_ids(3, seed)
        self.tree = DraftTree.chain([])

    def step(self) -> None:
        self._change_context()
        held = self.sequence.rewind(self.context[:-1])
        assert (self.sequence.token_ids == self.context[:held]).all()
        n = int(self.random.integers(0, 8))
        parents = np.array([int(self.random.integers(0, i + 1)) for i in range(n)], dtype=np.int64)
        self.tree = DraftTree(self._random_ids(n), parents)
        [logits] = self.runner.forward(
            [Segment(self.sequence, self.context[held:], self.tree.token_ids, parents, wanted=self.tree.num_nodes)]
        )
        node = int(self.random.integers(0, self.tree.num_nodes))
        path = np.array(self.tree.path(node), dtype=np.uint32)
        assert close(logits[node], fresh_logits(self.runner, np.concatenate([self.context, path])))

    def _random_ids(self, n: int) -> np.ndarray:
        return self.random.integers(0, V, n).astype(np.uint32)

    def _change_context(self) -> None:
        match int(self.random.integers(0, 4)):
            case 0:  # extend
                self.context = np.concatenate([self.context, self._random_ids(int(self.random.integers(1, 9)))])
            case 1:  # roll back, and on in another way
                kept = int(self.random.integers(0, len(self.context)))
                self.context = np.concatenate([self.context[:kept], self._random_ids(2)])
            case _:  # a path of the tree came true, and one token more
                node = int(self.random.integers(0, self.tree.num_nodes))
                path = np.array(self.tree.path(node), dtype=np.uint32)
                self.context = np.concatenate([self.context, path, self._random_ids(1)])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_after_any_history_of_a_cache_equal_a_fresh_forward(runners: dict[str, Runner], family: str) -> None:
    runner = runners[family]
    free = runner.pool.kv_free
    for seed in range(3):
        script = Script(runner, seed)
        for _ in range(25):
            script.step()
        script.sequence.release()
    assert runner.pool.kv_free == free


@pytest.mark.parametrize(
    "fault",
    [
        ("_move", lambda self, rows, to: None),  # the rows of a kept path stay where they were
        ("_matching_path", lambda self, token_ids: list(range(1, 1 + min(1, len(self.tree_ids))))),
    ],
    ids=["path not moved", "first child kept unseen"],
)
def test_negative_control_a_faulty_rewind_is_seen(
    runners: dict[str, Runner], monkeypatch: pytest.MonkeyPatch, fault: tuple[str, Any]
) -> None:
    monkeypatch.setattr(KVSequence, *fault)
    script = Script(runners["llama"], 0)
    with pytest.raises(AssertionError):
        for _ in range(50):
            script.step()
    script.sequence.release()


def test_negative_control_siblings_that_see_each_other_are_seen(
    runners: dict[str, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def chain_mask(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.tri(len(parents), dtype=np.bool_), np.ones(len(parents), dtype=np.int64)

    monkeypatch.setattr("specdec.lm.ragged._ancestors", chain_mask)
    script = Script(runners["llama"], 0)
    with pytest.raises(AssertionError):
        for _ in range(50):
            script.step()
    script.sequence.release()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_does_not_see_its_batch_mates(runners: dict[str, Runner], family: str) -> None:
    runner = runners[family]
    sequences = [runner.new_sequence() for _ in range(6)]
    contexts = [random_ids(n, seed=n) for n in (5, 30, 1, 17, 8, 23)]
    together = runner.forward([Segment(s, c, wanted=1) for s, c in zip(sequences, contexts, strict=True)])
    again = runner.forward([Segment(s, random_ids(2, 99), wanted=2) for s in reversed(sequences)])
    for i, context in enumerate(contexts):
        assert close(together[i][0], fresh_logits(runner, context))
        assert close(again[5 - i][-1], fresh_logits(runner, np.concatenate([context, random_ids(2, 99)])))
    for sequence in sequences:
        sequence.release()


@pytest.mark.scenario("B17")
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 33])
def test_first_token_logits_do_not_depend_on_the_prefill_chunks(runners: dict[str, Runner], length: int) -> None:
    """Prompts around a chunk size of 8: whole, and in chunks."""
    runner, ids = runners["llama"], random_ids(length)
    sequence = runner.new_sequence()
    for first in range(0, length, 8):
        [logits] = runner.forward([Segment(sequence, ids[first : first + 8], wanted=1)])
    whole = fresh_logits(runner, ids)
    assert close(logits[0], whole)
    assert logits[0].argmax() == whole.argmax()
    sequence.release()


@pytest.mark.scenario("B21")
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_positions_go_on_from_what_is_held(
    runners: dict[str, Runner], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past a boundary a batch began behind the cache's end. A block of 5 over every border of the allocation."""
    runner = runners["llama"]
    seen: list[list[int]] = []
    lay_out = RaggedBatch.of

    def watched(segments: Sequence[Segment]) -> RaggedBatch:
        batch = lay_out(segments)
        seen.append(batch.position_ids.tolist())
        return batch

    monkeypatch.setattr(RaggedBatch, "of", watched)
    sequence = runner.new_sequence()
    ids = random_ids(length)
    tree = DraftTree.chain(random_ids(5, 1))
    runner.forward([Segment(sequence, ids, tree.token_ids, tree.parents)])
    held = sequence.rewind(np.concatenate([ids, tree.token_ids[:2], random_ids(1)])[:-1])
    runner.forward([Segment(sequence, random_ids(1), tree.token_ids, tree.parents)])
    assert held == length + 2
    assert seen == [list(range(length + 5)), list(range(held, held + 6))]
    sequence.release()


def test_what_does_not_fit_is_refused_before_anything_is_written(runners: dict[str, Runner]) -> None:
    runner = Runner(runners["llama"].loaded, 3 * BLOCK)
    small, big = runner.new_sequence(), runner.new_sequence()
    runner.forward([Segment(small, random_ids(20))])
    with pytest.raises(ResourceExhausted):
        runner.forward([Segment(small, random_ids(3)), Segment(big, random_ids(2 * BLOCK + 1))])
    assert (small.num_rows, big.num_rows) == (20, 0)
    [logits] = runner.forward([Segment(small, random_ids(3, seed=5), wanted=1)])
    assert close(logits[0], fresh_logits(runner, np.concatenate([random_ids(20), random_ids(3, seed=5)])))


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_may_lie_anywhere(runners: dict[str, Runner], stock: dict[str, Any], family: str) -> None:
    """Where every second block is taken, the rest is what a sequence gets."""
    runner, ids = Runner(runners[family].loaded, 10 * BLOCK), random_ids(5 * BLOCK)
    held = [runner.new_sequence() for _ in range(10)]
    for seed, sequence in enumerate(held, 1):
        runner.forward([Segment(sequence, random_ids(BLOCK, seed))])
    for sequence in held[::2]:
        sequence.release()
    scattered = runner.new_sequence()
    for first in range(0, 5 * BLOCK, 40):
        [logits] = runner.forward([Segment(scattered, ids[first : first + 40], wanted=40)])
        assert close(logits, stock_logits(stock[family], ids[: first + 40])[first:])
    assert (np.diff(scattered.blocks) != 1).any()


class Broken:
    """A network that fails once everything is written."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.kv_shape = network.kv_shape

    def new_storage(self, num_blocks: int) -> KVStorage:
        return self._network.new_storage(num_blocks)

    def forward(
        self, batch: RaggedBatch, storage: KVStorage, layers: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._network.forward(batch, storage, layers)
        raise RuntimeError("out of memory")


def test_a_forward_that_raises_leaves_every_sequence_as_it_was(
    runners: dict[str, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, context = runners["qwen2"], random_ids(12)
    sequence = runner.new_sequence()
    runner.forward([Segment(sequence, context)])
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(runner, "loaded", replace(runner.loaded, network=Broken(runner.loaded.network)))
        runner.forward([Segment(sequence, random_ids(4, 1), random_ids(2), np.array([0, 1]))])
    assert sequence.token_ids.tolist() == context.tolist()
    [logits] = runner.forward([Segment(sequence, random_ids(1, 2), wanted=1)])
    assert close(logits[0], fresh_logits(runner, np.concatenate([context, random_ids(1, 2)])))
    sequence.release()
