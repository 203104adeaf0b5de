"""The decoder in C: what holds beyond the identity tests that every network passes (test_runner.py)."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.lm.linear import dequantise, quantise
from specdec.lm.loading import load_model
from specdec.lm.native import library as native_library
from specdec.lm.native.decoder import NativeNetwork
from specdec.lm.native.library import library
from specdec.lm.native.packing import interleave, pack
from specdec.lm.native.prebuilt import CPU_INFO, cpu_features
from specdec.lm.native.prebuilt import KINDS as PROCESSORS
from specdec.lm.native.prebuilt import Kind as Processor
from specdec.lm.native.storage import NativeKV
from specdec.lm.networks import Dtype, Unsupported, build_network
from specdec.lm.runner import Computed, Runner, Segment
from tests.tiny_models import FAMILIES, make_tiny_model

V = 97
Kind = tuple[Dtype, bool]
try:
    HAS_TILES = bool(library().specdec_tiles())
except Unsupported as reason:
    pytest.skip(f"nothing to test: {reason}", allow_module_level=True)
TILED: list[Kind] = [("bfloat16", True), ("int8", True)]
KINDS: list[Kind] = [("float32", False), ("bfloat16", False), ("int8", False)]
KINDS += TILED if HAS_TILES else []
FEATURES = cpu_features(CPU_INFO.read_text()) if CPU_INFO.exists() else frozenset[str]()
OTHERS = [one for one in PROCESSORS if one.machine == platform.machine() and one.needs <= FEATURES]


def stock_model(folder: Path, dtype: torch.dtype) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.requires_grad_(False)


def runner_of(folder: Path, kind: Kind, kv_tokens: int = 1024) -> Runner:
    dtype, tiles = kind
    loaded = load_model(str(folder), dtype=dtype, device="cpu", network="native")
    network = NativeNetwork(
        stock_model(folder, torch.float32 if dtype == "float32" else torch.bfloat16), dtype, tiles=tiles
    )
    return Runner(replace(loaded, network=network), kv_tokens)


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, n).astype(np.uint32)


def logits_in_chunks(runner: Runner, ids: np.ndarray, chunks: Sequence[int]) -> torch.Tensor:
    return chunked(runner, ids, chunks).logits


def chunked(runner: Runner, ids: np.ndarray, chunks: Sequence[int], layers: Sequence[int] = ()) -> Computed:
    sequence, parts = runner.new_sequence(), []
    for n in chunks:
        held = sequence.num_context
        parts += runner.compute([Segment(sequence, ids[held : held + n], wanted=n, tapped=n)], layers)
    sequence.discard()
    return Computed(torch.cat([p.logits for p in parts]), torch.cat([p.hidden for p in parts]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_bit_of_a_row_depends_on_how_its_context_was_cut(
    tiny_folders: dict[str, Path], family: str, kind: Kind
) -> None:
    runner, ids = runner_of(tiny_folders[family], kind), random_ids(75)
    whole = chunked(runner, ids, [75], (1, 2))
    for chunks in ([1] * 75, [13, 27, 35], [8] * 9 + [3], [33, 42]):
        cut = chunked(runner, ids, chunks, (1, 2))
        assert torch.equal(cut.logits, whole.logits) and torch.equal(cut.hidden, whole.hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_of_a_row_depends_on_the_rows_beside_it(tiny_folders: dict[str, Path], kind: Kind) -> None:
    runner = runner_of(tiny_folders["llama"], kind)
    contexts = [random_ids(n, seed=n) for n in (5, 31, 32, 33, 40, 1, 64, 20, 19)]
    alone = [logits_in_chunks(runner, ids, [len(ids)])[-1] for ids in contexts]
    sequences = [runner.new_sequence() for _ in contexts]
    runner.forward([Segment(s, ids[:-1]) for s, ids in zip(sequences, contexts, strict=True) if len(ids) > 1])
    together = runner.forward([Segment(s, ids[-1:], wanted=1) for s, ids in zip(sequences, contexts, strict=True)])
    for one, many in zip(alone, together, strict=True):
        assert torch.equal(one, many[0])


@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_of_a_row_depends_on_how_many_are_computed_at_a_time(tmp_path: Path, kind: Kind) -> None:
    """Inputs that are no whole number of the pieces in which sums are made; rows on both sides of every size at which
    kernels go about them in another way."""
    folder = make_tiny_model(tmp_path / "wide", vocab_size=V, hidden=160, heads=5, kv_heads=5)
    runner, ids = runner_of(folder, kind), random_ids(330)
    whole = logits_in_chunks(runner, ids, [330])
    for chunks in ([16, 17, 33, 49, 65, 129, 21], [128, 32, 64, 106], [290, *[1] * 40], [*range(1, 26), 5]):
        assert torch.equal(logits_in_chunks(runner, ids, chunks), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_verified_chain_gives_the_bits_of_plain_decoding(tiny_folders: dict[str, Path], kind: Kind) -> None:
    runner, ids = runner_of(tiny_folders["qwen2"], kind), random_ids(50)
    plain = logits_in_chunks(runner, ids, [41, *[1] * 9])
    sequence = runner.new_sequence()
    runner.forward([Segment(sequence, ids[:40])])
    [verified] = runner.forward([Segment(sequence, ids[40:41], ids[41:], np.arange(9), wanted=10)])
    assert torch.equal(verified, plain[40:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape",
    [
        {"hidden": 48, "heads": 2, "kv_heads": 1},
        {"hidden": 96, "heads": 6, "kv_heads": 6},
        {"hidden": 256, "heads": 2, "kv_heads": 1, "vocab_size": 131},
        {"hidden": 64, "heads": 4, "kv_heads": 2, "tie_word_embeddings": True},
    ],
    ids=["padded", "no groups", "wide heads", "tied"],
)
def test_odd_shapes_compute_what_transformers_computes(tmp_path: Path, shape: dict[str, Any], kind: Kind) -> None:
    assert_near_transformers(make_tiny_model(tmp_path, std=0.1, **shape), kind)


@pytest.mark.parametrize("processor", OTHERS, ids=lambda processor: processor.name)
def test_on_every_kind_of_processor_it_computes_what_transformers_computes(
    tmp_path: Path, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled as for a processor that has less than this one."""
    monkeypatch.setattr(native_library, "FLAGS", processor.compiler_flags)
    library.cache_clear()
    try:
        folder = make_tiny_model(tmp_path, std=0.1, hidden=96, heads=6, kv_heads=2)
        for dtype in get_args(Dtype):
            assert_near_transformers(folder, (dtype, bool(library().specdec_tiles()) and dtype != "float32"))
    finally:
        library.cache_clear()


def assert_near_transformers(folder: Path, kind: Kind) -> None:
    """Of bfloat16 and int8: the same weights in float32, within what rounding of activations explains."""
    ids, oracle = random_ids(45), stock_model(folder, torch.float32)
    if kind[0] == "int8":
        round_weights(oracle)
    with torch.inference_mode():
        expected = oracle(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    error = float((logits_in_chunks(runner_of(folder, kind), ids, [20, 25]) - expected).abs().max())
    assert error < (1e-4 if kind[0] == "float32" else 0.03 * float(expected.abs().max()))


def round_weights(model: Any) -> None:
    """What int8 weights stand for; the embedding stays as it is."""
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    if tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone(), requires_grad=False)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.copy_(dequantise(*quantise(module.weight.bfloat16())).float())


@pytest.mark.parametrize("tiles", [False, True])
def test_packed_weights_lie_where_the_c_looks_for_them(tiles: bool) -> None:
    weight = torch.randn(20, 40, generator=torch.manual_seed(0)).bfloat16()
    packed = pack(weight, tiles).reshape(-1)
    assert len(packed) == 32 * 64
    for n in range(32):
        for k in range(64):
            if tiles:
                at = ((n // 16 * 2 + k // 32) * 16 + k % 32 // 2) * 32 + n % 16 * 2 + k % 2
            else:
                at = (n // 16 * 64 + k) * 16 + n % 16
            assert packed[at] == (weight[n, k] if n < 20 and k < 40 else 0)


def test_gate_and_up_alternate_by_panels() -> None:
    both = interleave(torch.arange(20.0)[:, None], 100 + torch.arange(20.0)[:, None])[:, 0]
    assert both[:16].tolist() == list(range(16))
    assert both[16:32].tolist() == list(range(100, 116))
    assert both[32:36].tolist() == list(range(16, 20))
    assert both[36:48].count_nonzero() == 0
    assert both[48:52].tolist() == list(range(116, 120))


@pytest.mark.parametrize("kind", KINDS)
def test_kv_rows_are_read_as_written_and_move_as_if_at_once(tiny_folders: dict[str, Path], kind: Kind) -> None:
    runner = runner_of(tiny_folders["llama"], kind)
    storage = runner.loaded.network.new_storage(3)
    assert isinstance(storage, NativeKV)
    rows = np.arange(96)
    content = np.random.default_rng(0).integers(-99, 99, (96, 2, 2, 2, 16)).astype(np.float32)
    storage.write(rows, content)
    assert (storage.read(rows) == content).all()
    storage.move(np.array([4, 70, 33]), np.array([70, 4, 5]))
    content[[70, 4, 5]] = content[[4, 70, 33]]
    assert (storage.read(rows) == content).all()
    storage.clear([1])
    content[32:64] = 0
    assert (storage.read(rows) == content).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_a_session_that_computed_nan(tiny_folders: dict[str, Path], kind: Kind) -> None:
    runner, ids = runner_of(tiny_folders["llama"], kind, kv_tokens=64), random_ids(40)
    clean = logits_in_chunks(runner, ids, [40])
    poisoned = runner.new_sequence()
    runner.forward([Segment(poisoned, random_ids(60, seed=1))])
    storage = runner._storage
    assert isinstance(storage, NativeKV)
    nan = np.full((64, 2, 2, 2, 16), np.nan, dtype=np.float32)
    storage.write(np.arange(64), nan)
    poisoned.discard()
    assert torch.equal(logits_in_chunks(runner, ids, [40]), clean)


def test_several_threads_compute_the_bits_of_one(tiny_folders: dict[str, Path]) -> None:
    runner, ids = runner_of(tiny_folders["llama"], ("float32", False)), random_ids(60)
    one = logits_in_chunks(runner, ids, [50, 9, 1])
    torch.set_num_threads(3)
    try:
        assert torch.equal(logits_in_chunks(runner, ids, [50, 9, 1]), one)
    finally:
        torch.set_num_threads(1)


def test_a_small_forward_starts_no_more_threads_than_it_has_work_for(tiny_folders: dict[str, Path]) -> None:
    network = runner_of(tiny_folders["llama"], ("float32", False)).loaded.network
    assert isinstance(network, NativeNetwork)
    torch.set_num_threads(3)
    try:
        threads = [
            network._workspace.threads(rows, columns) for rows, columns in ((1, 32), (9, 32), (50, 64), (1, 8192))
        ]
    finally:
        torch.set_num_threads(1)
    assert threads == [1, 3, 3, 3]


def test_the_original_weights_are_freed(tiny_folders: dict[str, Path]) -> None:
    model = stock_model(tiny_folders["llama"], torch.float32)
    build_network("native", model, "float32")
    assert list(model.parameters()) == []


@pytest.mark.parametrize(
    ("compiler", "reason"), [("", "no C compiler"), ("false", "failed"), ("no-such-compiler", "no-such-compiler")]
)
def test_without_a_working_compiler_another_network_serves_and_the_log_says_why(
    tiny_folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compiler: str,
    reason: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr("shutil.which", lambda name: None)
    native_library.library.cache_clear()
    try:
        with caplog.at_level(logging.INFO):
            loaded = load_model(str(tiny_folders["llama"]), dtype="float32", device="cpu")
        with pytest.raises(Unsupported, match=reason):
            library()
    finally:
        native_library.library.cache_clear()
    assert not isinstance(loaded.network, NativeNetwork)
    assert any(reason in record.getMessage() for record in caplog.records)


def test_the_library_is_compiled_once_for_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native_library.library.cache_clear()
    try:
        library()
        [made] = (tmp_path / "specdec" / "native").iterdir()
        before = made.stat().st_mtime_ns
        native_library.library.cache_clear()
        library()
        assert [path.stat().st_mtime_ns for path in made.parent.iterdir()] == [before]
    finally:
        native_library.library.cache_clear()
