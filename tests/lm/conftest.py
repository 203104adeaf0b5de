"""Tiny models of every family, saved once per test run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_models import FAMILIES, make_tiny_model


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family -> model folder; Mistral's with a sliding window that is shorter than the contexts of the tests."""
    root = tmp_path_factory.mktemp("tiny")
    windows = {"mistral": {"sliding_window": 12}}
    return {
        family: make_tiny_model(root / family, family, seed=i, **windows.get(family, {}))
        for i, family in enumerate(FAMILIES)
    }


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on models this small only wait for each other, all the more beside other processes."""
    torch.set_num_threads(1)
