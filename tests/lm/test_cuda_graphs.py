"""Padded, staged and captured forwards against ragged ones. Without a GPU a capture is the work itself, done again on
the same buffers: everything but the recording runs as it does there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.core.tree import DraftTree
from specdec.lm.cuda_graphs import CudaCapture, CudaGraphs, Decoder, PaddedKV
from specdec.lm.kv import KVPool, KVSequence
from specdec.lm.lean import LeanNetwork
from specdec.lm.loading import LoadedModel, load_model
from specdec.lm.network import BLOCK, KVStorage, Network
from specdec.lm.ragged import RaggedBatch
from specdec.lm.runner import Runner, Segment
from specdec.lm.staging import Staging
from tests.tiny_models import FAMILIES

V = 97
KV_TOKENS = 4096
TOLERANCE = 1e-5


class Rerun:
    """A `Capture` that does the work again."""

    def __init__(self) -> None:
        self.captures = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        work()
        return work


@pytest.fixture(scope="module")
def models(tiny_folders: dict[str, Path]) -> dict[str, LoadedModel]:
    return {
        family: load_model(str(folder), dtype="float32", device="cpu", network="lean")
        for family, folder in tiny_folders.items()
    }


def graphs_of(loaded: LoadedModel, capture: Rerun | None, **options: int) -> tuple[Runner, CudaGraphs]:
    network = CudaGraphs(cast(Decoder, loaded.network), capture, **options)
    return Runner(replace(loaded, network=cast(Network, network)), KV_TOKENS), network


def storage_of(runner: Runner) -> PaddedKV:
    storage = runner._storage
    assert isinstance(storage, PaddedKV)
    return storage


def ids(random: np.random.Generator, n: int) -> np.ndarray:
    return random.integers(0, V, n).astype(np.uint32)


class Twins:
    """The same histories in two runners."""

    def __init__(
        self, runners: tuple[Runner, Runner], sessions: int, seed: int = 0, tolerance: float = TOLERANCE
    ) -> None:
        self.tolerance = tolerance
        self.runners = runners
        self.random = np.random.default_rng(seed)
        self.sequences = [[runner.new_sequence() for _ in range(sessions)] for runner in runners]
        self.contexts = [ids(self.random, int(n)) for n in self.random.integers(1, 60, sessions)]

    def step(self, most_rows: int = 12) -> None:
        """Some sessions go on by a token or by a chunk, with a chain or a tree; the results must be equal."""
        chosen = [i for i in range(len(self.contexts)) if self.random.random() < 0.7] or [0]
        trees = {i: self.tree(int(self.random.integers(0, most_rows))) for i in chosen}
        for i in chosen:
            grown = int(self.random.choice([1, 1, 1, 2, 30]))
            self.contexts[i] = np.concatenate([self.contexts[i], ids(self.random, grown)])
        ragged, padded = (
            runner.forward([self.segment(sequences[i], i, trees[i]) for i in chosen])
            for runner, sequences in zip(self.runners, self.sequences, strict=True)
        )
        for a, b in zip(ragged, padded, strict=True):
            assert same(a, b, self.tolerance)

    def tree(self, n: int) -> DraftTree:
        chain = self.random.random() < 0.5
        parents = [i if chain else int(self.random.integers(0, i + 1)) for i in range(n)]
        return DraftTree(ids(self.random, n), np.array(parents, dtype=np.int64))

    def segment(self, sequence: KVSequence, i: int, tree: DraftTree) -> Segment:
        held = sequence.rewind(self.contexts[i][:-1])
        return Segment(sequence, self.contexts[i][held:], tree.token_ids, tree.parents, wanted=tree.num_nodes)


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    """tolerance: in parts of the largest logit, which is about 10."""
    a, b = a.cpu(), b.cpu()
    return a.dtype == b.dtype == torch.float32 and float((a - b).abs().max()) <= tolerance * float(a.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_compute_what_ragged_forwards_do(models: dict[str, LoadedModel], family: str) -> None:
    """Chains, trees and chunks of prompts, alone and mixed; many shapes, few captures."""
    capture = Rerun()
    runner, _ = graphs_of(models[family], capture)
    twins = Twins((Runner(models[family], KV_TOKENS), runner), sessions=6)
    steps = 25
    for _ in range(steps):
        twins.step()
    assert 2 < capture.captures < steps
    assert len(storage_of(runner).graphs) == capture.captures


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_ragged_forwards(models: dict[str, LoadedModel], family: str) -> None:
    """Three sessions together, over a border of blocks and of buckets."""
    texts = []
    for runner in (Runner(models[family], KV_TOKENS), graphs_of(models[family], Rerun())[0]):
        random = np.random.default_rng(5)
        sequences = [runner.new_sequence() for _ in range(3)]
        news = [ids(random, n) for n in (4, 29, 120)]
        text: list[list[int]] = []
        for _ in range(15):
            out = runner.forward([Segment(s, new, wanted=1) for s, new in zip(sequences, news, strict=True)])
            news = [logits.argmax(-1).numpy().astype(np.uint32) for logits in out]
            text.append([int(new[0]) for new in news])
        texts.append(text)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_padded_forwards_compute_what_ragged_ones_do(models: dict[str, LoadedModel], family: str) -> None:
    runner, _ = graphs_of(models[family], None)
    twins = Twins((Runner(models[family], KV_TOKENS), runner), sessions=5, seed=1)
    for _ in range(15):
        twins.step()
    assert not storage_of(runner).graphs


def test_negative_control_inputs_that_are_not_sent_again_are_seen(
    models: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Staging] = []
    send = Staging.send

    def once(self: Staging) -> None:
        if self not in sent:
            sent.append(self)
            send(self)

    monkeypatch.setattr(Staging, "send", once)
    runner, _ = graphs_of(models["llama"], Rerun())
    twins = Twins((Runner(models["llama"], KV_TOKENS), runner), sessions=6)
    with pytest.raises(AssertionError):
        for _ in range(40):
            twins.step()


def one_row(runner: Runner, sequence: KVSequence, token: int) -> torch.Tensor:
    [logits] = runner.forward([Segment(sequence, np.array([token], dtype=np.uint32), wanted=1)])
    return logits


def test_decoding_is_captured_once_and_its_results_outlive_the_next_replay(models: dict[str, LoadedModel]) -> None:
    capture = Rerun()
    runner, _ = graphs_of(models["qwen2"], capture)
    sequence = runner.new_sequence()
    kept = [one_row(runner, sequence, token) for token in range(20)]
    copies = [logits.clone() for logits in kept]
    one_row(runner, sequence, 50)
    assert capture.captures == 1
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert len({logits.argmax().item() for logits in kept}) > 1


def test_graphs_are_dropped_in_order_of_use_and_captured_again(models: dict[str, LoadedModel]) -> None:
    capture = Rerun()
    runner, _ = graphs_of(models["llama"], capture, most_graphs=2)
    sequence, random = runner.new_sequence(), np.random.default_rng(0)

    def rows(n: int) -> None:
        sequence.rewind(sequence.token_ids[:10])
        runner.forward([Segment(sequence, ids(random, n), wanted=1)])

    for n, captures in ((1, 1), (2, 2), (1, 2), (4, 3), (1, 3), (2, 4)):
        rows(n)
        assert capture.captures == captures
        assert len(storage_of(runner).graphs) <= 2


def test_large_forwards_are_not_captured(models: dict[str, LoadedModel]) -> None:
    capture = Rerun()
    runner, _ = graphs_of(models["mistral"], capture)
    plain = Runner(models["mistral"], KV_TOKENS)
    random = np.random.default_rng(0)
    prompts = [ids(random, 300) for _ in range(2)]
    outs = [torch.cat(r.forward([Segment(r.new_sequence(), p, wanted=3) for p in prompts])) for r in (plain, runner)]
    assert same(outs[0], outs[1])
    assert capture.captures == 0


def test_a_device_that_cannot_capture_computes_eagerly_and_says_so_once(
    models: dict[str, LoadedModel], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Rerun):
        def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
            super().__call__(work)
            raise RuntimeError("operation not permitted when stream is capturing")

    capture = Broken()
    runner, _ = graphs_of(models["qwen3"], capture)
    twins = Twins((Runner(models["qwen3"], KV_TOKENS), runner), sessions=3)
    with caplog.at_level(logging.WARNING, "specdec.lm.cuda_graphs"):
        for _ in range(5):
            twins.step()
    assert capture.captures == 1
    assert [r.message for r in caplog.records].count(caplog.records[0].message) == 1
    assert "not permitted" in caplog.text


def test_a_forward_that_fails_raises_and_leaves_capturing_as_it_was(
    models: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, network = graphs_of(models["llama"], Rerun())
    sequence = runner.new_sequence()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):

        def broken(*unused: object) -> torch.Tensor:
            raise RuntimeError("out of memory")

        patch.setattr(models["llama"].network, "decoder", broken)
        one_row(runner, sequence, 3)
    assert sequence.num_rows == 0
    assert network.capture is not None
    assert one_row(runner, sequence, 3).shape == (1, V)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_captured_reads_no_value(
    tiny_folders: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On torch's device without values, where whatever waits for a number or meets a tensor of the host raises."""
    device = torch.device("meta")
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folders[family], dtype=torch.bfloat16)
    network = CudaGraphs(LeanNetwork(model.to(device), "bfloat16"), Rerun())
    storage = network.new_storage(32)
    pool = KVPool(cast(KVStorage, storage), 32 * BLOCK)
    random = np.random.default_rng(0)
    tree = np.array([0, 0, 1], dtype=np.int64)
    batch = RaggedBatch.of(
        [
            Segment(pool.new_sequence(), ids(random, 40), ids(random, 3), tree, wanted=4, tapped=3),
            *[Segment(pool.new_sequence(), ids(random, 1), wanted=1) for _ in range(5)],
        ]
    )
    logits, hidden = network.forward(batch, storage, (0, 2))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(LeanNetwork, "head", lambda self, hidden: hidden[: int(hidden.argmax())])
        CudaGraphs(network._decoder, None).forward(batch, storage)  # a negative control
    assert network.capture is not None and len(storage.graphs) == 1
    assert (logits.shape, logits.dtype, logits.device) == ((9, V), torch.float32, device)
    assert (hidden.shape, hidden.dtype, hidden.device) == ((3, 2, 64), torch.float32, device)


@pytest.fixture
def on_cuda(tiny_folders: dict[str, Path]) -> Iterator[Callable[[str], LoadedModel]]:
    yield lambda family: load_model(str(tiny_folders[family]), dtype="float32", device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the recording itself runs nowhere else")
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_graphs_compute_what_the_cpu_does(
    models: dict[str, LoadedModel], on_cuda: Callable[[str], LoadedModel], family: str, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = on_cuda(family)
    assert isinstance(loaded.network, CudaGraphs)
    assert isinstance(loaded.network.capture, CudaCapture)
    runner = Runner(loaded, KV_TOKENS)
    twins = Twins((runner, Runner(models[family], KV_TOKENS)), sessions=6, tolerance=5e-4)
    for _ in range(60):
        twins.step()
    assert storage_of(runner).graphs
    assert not caplog.records, "a capture failed"
