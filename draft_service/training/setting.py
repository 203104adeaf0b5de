"""What every training starts from: the target, the data, the ids of the draft's head, the target's hidden states."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from draft_service.training.corpus import Document, read_corpus, split
from draft_service.training.features import FeatureCache, Features, bytes_per_token, fitting
from draft_service.training.head_ids import frequent_ids
from draft_service.training.show import counted
from draft_service.training.target_parts import TargetParts
from specdec.core.errors import ConfigError
from specdec.core.tree import Ids
from specdec.lm.id_map import read_head_ids
from specdec.lm.loading import LoadedModel, load_model, read_special_ids
from specdec.lm.prepare import models_cache, prepare
from specdec.lm.runner import Runner

KV_TOKENS = 4096  # of the pass over the data


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """folder: where it lies."""

    folder: Path
    loaded: LoadedModel
    tokenizer: Any

    @staticmethod
    def load(spec: str, dtype: str, device: str) -> Target:
        """Raises ConfigError."""
        folder = prepare(spec)
        loaded = load_model(str(folder), dtype=dtype, device=device)  # type: ignore[arg-type]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return Target(folder, loaded, tokenizer)

    def documents(self, data: Path | None, max_tokens: int) -> list[Document]:
        path = default_data(self) if data is None else data
        return read_corpus(path, self.tokenizer, min(max_tokens, self.loaded.max_context))

    def frequent_ids(self, documents: Sequence[Document], size: int) -> Ids:
        """End ids and the tokenizer's special ids are always among them."""
        always = {*self.loaded.eos_ids, *read_special_ids(str(self.folder))}
        known = sorted(i for i in always if i < self.loaded.vocab_size)
        return frequent_ids(documents, size, self.loaded.vocab_size, known)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """head_ids: None: all. head: [C, H], the target's rows for them. train, held: indices of documents; held: those
    sampled at temperature 1, or at none that is known."""

    target: Target
    parts: TargetParts
    documents: list[Document]
    train: list[int]
    held: list[int]
    head_ids: Ids | None
    head: torch.Tensor


def training_folder() -> Path:
    return models_cache().parent / "training"


def default_data(target: Target) -> Path:
    """Where `write` puts what the target writes."""
    return training_folder() / f"{target.loaded.name}-{target.loaded.base_fingerprint[:8]}.jsonl"


def prepare_setting(arguments: argparse.Namespace, layers: tuple[int, ...], device: torch.device) -> Setting:
    """layers: whose states are kept. Raises ConfigError."""
    target = Target.load(arguments.target, arguments.dtype, arguments.device)
    loaded = target.loaded
    documents = target.documents(arguments.data, arguments.max_tokens)
    kept = fitting(documents, bytes_per_token(len(layers), loaded.hidden_size), int(arguments.cache_gb * 1e9))
    if not kept:
        raise ConfigError("cache_gb", arguments.cache_gb, "holds not one document")
    if len(kept) < len(documents):
        print(f"the cache holds {len(kept)} of {len(documents)} documents: more with --cache-gb")
    train, held = split(kept)
    held = [i for i in held if kept[i].temperature in (None, 1.0)] or held
    ids = _head_ids(arguments, target, [kept[i] for i in train])
    precision = torch.float32 if arguments.float32 else torch.bfloat16
    parts = TargetParts.load(target.folder, loaded.vocab_size, precision, device)
    return Setting(target, parts, kept, train, held, ids, parts.rows_of_head(ids))


def compute_features(setting: Setting, layers: tuple[int, ...], quiet: bool) -> None:
    """Whatever is missing of them in the cache."""
    cache = feature_cache(setting, layers)
    runner = Runner(setting.target.loaded, max(KV_TOKENS, 2 * max(len(d.ids) for d in setting.documents)))
    total = sum(len(document.ids) for document in setting.documents)
    counted("hidden states", cache.extend(runner, setting.parts, setting.documents), total, quiet)


def open_features(setting: Setting, layers: tuple[int, ...]) -> Features:
    return feature_cache(setting, layers).open(setting.documents)


def feature_cache(setting: Setting, layers: tuple[int, ...]) -> FeatureCache:
    loaded = setting.target.loaded
    name = f"{loaded.name}-{loaded.fingerprint[:8]}-{'-'.join(map(str, layers))}"
    return FeatureCache(training_folder() / "features" / name, layers, loaded.hidden_size)


def _head_ids(arguments: argparse.Namespace, target: Target, documents: Sequence[Document]) -> Ids | None:
    if arguments.head_ids is not None:
        return read_head_ids(str(arguments.head_ids), target.loaded.vocab_size, target.loaded.eos_ids)
    if not 0 < arguments.head_size < target.loaded.vocab_size:
        return None
    return np.asarray(target.frequent_ids(documents, arguments.head_size))
