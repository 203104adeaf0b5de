"""Single tensors of a model's safetensors, without loading the model."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils.hub import cached_file

from specdec.core.errors import ConfigError

# What drafters borrow from their target: of a tied model only the first is stored.
EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_tensors(path: str, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Those of `names` that the model at `path`, a folder or hub name, has, as they are stored.

    Raises ConfigError where there are no safetensors, or damaged ones."""
    found: dict[str, torch.Tensor] = {}
    try:
        for file in _files(path, names):
            with safe_open(file, framework="pt") as stored:
                found |= {name: stored.get_tensor(name) for name in set(names) & set(stored.keys())}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError("target_model", path, f"its weights cannot be read: {error}") from error
    return found


def borrowed_tensors(path: str) -> dict[str, torch.Tensor]:
    """EMBEDDING, HEAD and FINAL_NORM of a Llama-shaped model; a tied head is its embedding. Raises ConfigError."""
    found = read_tensors(path, (EMBEDDING, HEAD, FINAL_NORM))
    if missing := {EMBEDDING, FINAL_NORM} - set(found):
        raise ConfigError("target_model", path, f"has no tensor {', '.join(sorted(missing))}: not shaped like a Llama")
    found.setdefault(HEAD, found[EMBEDDING])
    return found


def _files(path: str, names: Collection[str]) -> set[Path]:
    index = cached_file(path, _INDEX, _raise_exceptions_for_missing_entries=False)
    if index is None:
        file = cached_file(path, _WEIGHTS)
        assert file is not None, "or it has raised"
        return {Path(file)}
    places = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
    shards = [cached_file(path, shard) for shard in {places[name] for name in names if name in places}]
    return {Path(shard) for shard in shards if shard is not None}
