"""The ids that a draft's head is cut to: those that the target's outputs really use (Zhao et al. 2025, "FR-Spec"). On
a CPU the head is most of a small draft's cost; q is zero elsewhere, and the output law is what it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from draft_service.training.corpus import Document
from specdec.core.tree import Ids


def frequent_ids(documents: Iterable[Document], size: int, vocab_size: int, always: Sequence[int]) -> Ids:
    """uint32[min(size, vocab_size)], ascending: `always`, then what is most often learned, then the smallest."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for document in documents:
        ids = document.ids[document.learned]
        counts += np.bincount(ids[ids < vocab_size], minlength=vocab_size)
    counts[list(always)] = np.iinfo(np.int64).max
    order = np.argsort(-counts, kind="stable")
    return np.sort(order[: min(size, vocab_size)]).astype(np.uint32)


def coverage(documents: Iterable[Document], ids: Ids) -> float:
    """Share of the learned tokens that are among `ids`."""
    learned = np.concatenate([document.ids[document.learned] for document in documents])
    return float(np.isin(learned, ids).mean()) if len(learned) else 0.0


def write_head_ids(path: Path, ids: Ids) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ids.tolist()) + "\n", encoding="utf-8")
