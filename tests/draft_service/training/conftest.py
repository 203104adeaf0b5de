"""A tiny target with a tokenizer and a chat template, a data file of its size, and the target's hidden states."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from draft_service.training.arguments import parser
from draft_service.training.rows import Rows
from draft_service.training.setting import Setting, compute_features, open_features, prepare_setting
from tests.tiny_models import make_tiny_model
from tests.toy_tokenizers import CHATML, EOS_ID, save_folder

LAYERS = 3
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "tiny-target"
    make_tiny_model(folder, vocab_size=300, layers=LAYERS, hidden=32, eos_id=EOS_ID, std=0.3)
    return save_folder(folder, "byte_level", chat_template=CHATML)


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """41 conversations over few ids, so that something can be learned from them."""
    rng = np.random.default_rng(5)
    file = tmp_path_factory.mktemp("data") / "written.jsonl"
    with file.open("w") as stream:
        for number in range(41):
            ids = rng.integers(3, 40, size=int(rng.integers(12, 40))).tolist()
            stream.write(json.dumps({"ids": ids, "answer": 4, "temperature": (1.0, 0.6)[number % 3 == 2]}) + "\n")
    return file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def arguments(cache: Path, target_folder: Path, data_file: Path, tmp_path: Path) -> Callable[..., Namespace]:
    """Of `specdec train KIND ...`, in float32, few and small steps."""

    def parse(kind: str, *more: str) -> Namespace:
        common = ("--target", target_folder, "--data", data_file, "--out", tmp_path / kind, "--dtype", "float32")
        sizes = ("--float32", "--row-tokens", 24, "--batch", 4, "--eval-tokens", 64, "--final-eval-tokens", 64)
        return parser().parse_args([kind, *map(str, common), *map(str, sizes), *more])

    return parse


@pytest.fixture
def setting(arguments: Callable[..., Namespace]) -> Setting:
    """With the hidden states of the last layer, over all ids."""
    return prepare_setting(arguments("eagle", "--head-size", "0"), (LAYERS,), CPU)


@pytest.fixture
def rows(setting: Setting) -> Callable[[int, int], Rows]:
    """Of the documents to train on, by length and lookahead."""
    compute_features(setting, (LAYERS,), quiet=True)

    def make(length: int, lookahead: int) -> Rows:
        return Rows(setting.documents, setting.train, open_features(setting, (LAYERS,)), length, lookahead)

    return make
