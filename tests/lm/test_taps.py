"""Hidden states between layers, and vectors in place of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.core.errors import ConfigError
from specdec.lm.cuda_graphs import CudaGraphs, Decoder
from specdec.lm.loading import load_model
from specdec.lm.network import Network
from specdec.lm.networks import Dtype, build_network
from specdec.lm.runner import Computed, Runner, Segment
from tests.lm.served import random_ids, serve
from tests.tiny_models import FAMILIES, make_tiny_model

LAYERS = (2, 0, 1)  # in any order; 2 is the last of the tiny models
WAYS = ("native", "lean", "stock", "padded", "captured")


@pytest.fixture(scope="module", params=WAYS)
def runners(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> dict[str, Runner]:
    """By family. Padded, captured: as on a GPU, where a capture is the work itself, done again."""
    if request.param in ("native", "lean", "stock"):
        return {family: serve(folder, request.param) for family, folder in tiny_folders.items()}
    capture = (lambda work: work() or work) if request.param == "captured" else None
    return {family: _on_grids(serve(folder, "lean"), capture) for family, folder in tiny_folders.items()}


def _on_grids(runner: Runner, capture: Any) -> Runner:
    network = CudaGraphs(cast(Decoder, runner.loaded.network), capture)
    return Runner(replace(runner.loaded, network=cast(Network, network)), 4096)


def expected_states(model: Any, ids: np.ndarray, *, normed: bool = False) -> torch.Tensor:
    """[rows, len(LAYERS), hidden]: by a hook where it is the last layer's, whose `output_hidden_states` are normed."""
    last: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0][0]))
    with torch.inference_mode():
        states = model(torch.from_numpy(ids.astype(np.int64))[None], output_hidden_states=True).hidden_states
    hook.remove()
    between = [state[0] for state in states[:-1]] + ([states[-1][0]] if normed else last)
    return torch.stack([between[layer] for layer in LAYERS], dim=1)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """In parts of the largest: nothing norms the residual stream."""
    return a.shape == b.shape and float((a - b).abs().max()) < 1e-5 * float(b.abs().max())


def in_chunks(runner: Runner, ids: np.ndarray, chunks: Sequence[int]) -> Computed:
    sequence, parts = runner.new_sequence(), []
    for n in chunks:
        held = sequence.num_context
        [part] = runner.compute([Segment(sequence, ids[held : held + n], wanted=n, tapped=n)], LAYERS)
        parts.append(part)
    sequence.discard()
    return Computed(torch.cat([p.logits for p in parts]), torch.cat([p.hidden for p in parts]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunks", [[40], [13, 26, 1], [1] * 40])
def test_hidden_states_are_those_between_the_layers_of_transformers(
    runners: dict[str, Runner], stock: dict[str, Any], family: str, chunks: list[int]
) -> None:
    ids = random_ids(40)
    states = in_chunks(runners[family], ids, chunks).hidden
    assert close(states, expected_states(stock[family], ids))
    assert not close(states, expected_states(stock[family], ids, normed=True)), "a negative control"


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_of_tree_rows_are_those_of_their_paths(
    runners: dict[str, Runner], stock: dict[str, Any], family: str
) -> None:
    """Beside segments that are not tapped, and with fewer logits than states, or more."""
    runner, context, tree = runners[family], random_ids(11), random_ids(6, seed=2)
    parents = np.array([0, 0, 1, 1, 2, 5])
    own, other, chain = (runner.new_sequence() for _ in range(3))
    computed = runner.compute(
        [
            Segment(other, random_ids(9, seed=3), wanted=2),
            Segment(own, context, tree, parents, wanted=1, tapped=7),
            Segment(chain, context, wanted=4, tapped=1),
        ],
        LAYERS,
    )
    assert [(len(c.logits), len(c.hidden)) for c in computed] == [(2, 0), (1, 7), (4, 1)]
    paths: list[list[int]] = [[]]
    for node, parent in enumerate(parents):
        paths.append([*paths[parent], int(tree[node])])
    for state, path in zip(computed[1].hidden, paths, strict=True):
        ids = np.concatenate([context, np.array(path, dtype=np.uint32)])
        assert close(state, expected_states(stock[family], ids)[-1])
    assert close(computed[2].hidden[0], computed[1].hidden[0])
    for sequence in (own, other, chain):
        sequence.release()


@pytest.mark.parametrize("family", FAMILIES)
def test_no_bit_of_the_logits_depends_on_taps(runners: dict[str, Runner], family: str) -> None:
    runner, ids, parents = runners[family], random_ids(35), np.array([0, 1, 1, 2])
    logits = []
    for layers in ((), LAYERS, (1,)):
        sequence = runner.new_sequence()
        for segment in (
            Segment(sequence, ids[:30], wanted=3, tapped=4),
            Segment(sequence, ids[30:31], ids[31:], parents, wanted=5, tapped=5),
        ):
            [computed] = runner.compute([segment], layers)
            assert computed.hidden.shape == (segment.tapped, len(layers), 64)
            logits.append(computed.logits)
        sequence.discard()
    for other in logits[2:4], logits[4:]:
        assert all(torch.equal(a, b) for a, b in zip(logits[:2], other, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_as_inputs_give_the_bits_of_ids(
    runners: dict[str, Runner], stock: dict[str, Any], family: str
) -> None:
    """The ids beside them are others: they only name the rows."""
    runner, ids, names, parents = runners[family], random_ids(35), random_ids(35, seed=9), np.array([0, 0, 1, 2])
    vectors = stock[family].get_input_embeddings().weight[torch.from_numpy(ids.astype(np.int64))]
    by_ids, by_vectors = runner.new_sequence(), runner.new_sequence()
    for cut, tree in ((slice(0, 20), slice(20, 20)), (slice(20, 31), slice(31, 35))):
        link = parents[: tree.stop - tree.start]
        inputs = vectors[cut.start : tree.stop]
        [a] = runner.compute([Segment(by_ids, ids[cut], ids[tree], link, 3, 2)], LAYERS)
        [b] = runner.compute([Segment(by_vectors, names[cut], names[tree], link, 3, 2, inputs)], LAYERS)
        assert torch.equal(a.logits, b.logits) and torch.equal(a.hidden, b.hidden)
    assert by_vectors.token_ids.tolist() == names[:31].tolist()
    assert by_vectors.rewind(names[:25]) == 25
    for sequence in (by_ids, by_vectors):
        sequence.discard()


def test_inputs_are_for_all_segments_or_none(runners: dict[str, Runner]) -> None:
    runner, vectors = runners["llama"], torch.zeros(3, 64)
    sequences = runner.new_sequence(), runner.new_sequence()
    with pytest.raises(AssertionError, match="others have not"):
        runner.compute([Segment(sequences[0], random_ids(3), inputs=vectors), Segment(sequences[1], random_ids(3))])
    with pytest.raises(AssertionError, match="its input"):
        Segment(sequences[0], random_ids(2), inputs=vectors)
    for layers in ((3,), (1, 1), (-1,)):
        with pytest.raises(AssertionError, match="layer"):
            runner.compute([Segment(sequences[0], random_ids(3), tapped=1)], layers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("embedding", ["tied", "its own", "none"])
@pytest.mark.parametrize("layers", [1, 3])
def test_heads_of_any_width_and_few_layers_compute_on_inputs_what_lean_does(
    tmp_path: Path, dtype: Dtype, embedding: str, layers: int
) -> None:
    """As a draft head is served: some rows of a vocabulary, embeddings elsewhere."""
    tied = embedding == "tied"
    folder = make_tiny_model(tmp_path / "head", vocab_size=131, layers=layers, std=0.1, tie_word_embeddings=tied)
    loaded = load_model(str(folder), dtype=dtype, device="cpu")
    vectors = torch.randn((30, 64), generator=torch.manual_seed(0)).bfloat16().float()
    outs = []
    for network in ("native", "lean", "stock"):
        model = _model(folder, dtype)
        if embedding == "none":
            model.model.embed_tokens = None
        try:
            runner = Runner(replace(loaded, network=build_network(network, model, dtype)), 64)
        except ConfigError as error:
            pytest.skip(str(error))
        sequence = runner.new_sequence()
        runner.compute([Segment(sequence, random_ids(21), inputs=vectors[:21])])
        outs += runner.compute([Segment(sequence, random_ids(9), wanted=9, tapped=9, inputs=vectors[21:])], [layers])
    for other in outs[1:]:
        for a, b in ((outs[0].logits, other.logits), (outs[0].hidden, other.hidden)):
            assert a.shape == b.shape
            assert float((a - b).abs().max()) < (1e-4 if dtype == "float32" else 0.04 * float(b.abs().max()))


def _model(folder: Path, dtype: Dtype) -> Any:
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("network", ["native", "lean"])
def test_a_model_without_an_embedding_says_that_it_needs_inputs(tmp_path: Path, network: str) -> None:
    folder = make_tiny_model(tmp_path / "head")
    loaded = load_model(str(folder), dtype="float32", device="cpu")
    model = _model(folder, "float32")
    model.model.embed_tokens = None
    runner = Runner(replace(loaded, network=build_network(network, model, "float32")), 64)
    with pytest.raises(AssertionError, match="needs inputs"):
        runner.forward([Segment(runner.new_sequence(), random_ids(3))])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the recording itself runs nowhere else")
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_graphs_tap_what_the_cpu_does(
    tiny_folders: dict[str, Path], stock: dict[str, Any], family: str
) -> None:
    """Once recorded, then replayed with other rows; by ids, and by vectors that lie on either side."""
    runner = Runner(load_model(str(tiny_folders[family]), dtype="float32", device="cuda"), 4096)
    for seed in range(3):
        ids = random_ids(9, seed)
        expected = expected_states(stock[family], ids)
        vectors = stock[family].get_input_embeddings().weight[torch.from_numpy(ids.astype(np.int64))]
        for inputs in (None, vectors, vectors.cuda()):
            sequence = runner.new_sequence()
            [computed] = runner.compute([Segment(sequence, ids, tapped=9, inputs=inputs)], LAYERS)
            assert float((computed.hidden.cpu() - expected).abs().max()) < 5e-4 * float(expected.abs().max())
            sequence.discard()
