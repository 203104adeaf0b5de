from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec.lm.loading import LoadedModel, load_model
from specdec.lm.runner import Runner
from target_service.engine import Engine, EngineLimits
from tests.tiny_models import FAMILIES, make_tiny_model

VOCAB = 97
MAX_CONTEXT = 160


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on models this small only wait for each other, all the more beside other processes."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    windows: dict[str, Any] = {"mistral": {"sliding_window": 12}}
    return {
        family: make_tiny_model(
            root / family, family, VOCAB, seed=i, max_context=MAX_CONTEXT, **windows.get(family, {})
        )
        for i, family in enumerate(FAMILIES)
    }


@pytest.fixture(scope="session")
def models(folders: dict[str, Path]) -> dict[str, LoadedModel]:
    return {family: load_model(str(folder), dtype="float32", device="cpu") for family, folder in folders.items()}


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(models: dict[str, LoadedModel]) -> MakeEngine:
    def make(
        family: str = "llama", *, loaded: LoadedModel | None = None, kv_tokens: int = 2000, **options: Any
    ) -> Engine:
        given = {"token_budget": 64, "max_nodes": 16, "max_context": MAX_CONTEXT, "max_sessions": 32}
        limits = EngineLimits(**{**given, **{k: options.pop(k) for k in list(options) if k in given}})
        return Engine(Runner(loaded or models[family], kv_tokens), limits, **options)

    return make
