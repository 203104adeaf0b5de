"""Tiny models served by a network, and the oracles beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specdec.core.errors import ConfigError
from specdec.lm.loading import Dtype, load_model
from specdec.lm.runner import Runner, Segment

V = 97
TOLERANCE = 1e-4  # of float32 logits that are a few units large


def serve(folder: Path, network: str, dtype: Dtype = "float32", kv_tokens: int = 4096) -> Runner:
    """Skips the test where this machine or model is none for the network."""
    try:
        return Runner(load_model(str(folder), dtype=dtype, device="cpu", network=network), kv_tokens)
    except ConfigError as error:
        if error.field != "network":
            raise
        pytest.skip(str(error))


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, n).astype(np.uint32)


def stock_logits(model: Any, ids: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    return logits


def fresh_logits(runner: Runner, ids: np.ndarray) -> torch.Tensor:
    """Of the last token, computed in one forward by a sequence of its own."""
    sequence = runner.new_sequence()
    [logits] = runner.forward([Segment(sequence, ids, wanted=1)])
    sequence.release()
    return logits[0]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a - b).abs().max()) < TOLERANCE
