"""Targets and drafters whose laws are known exactly: a table from contexts to logits, and a tokenizer of that size."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models

Logits = NDArray[np.float64]
FIRST_LETTER = 0x4E00  # one letter per id, so that any vocabulary size has a tokenizer


@dataclass(frozen=True, eq=False)
class Table:
    """logits: context -> float64[vocab_size]. memory: how many last tokens decide them, None: all may."""

    vocab_size: int
    logits: Callable[[Sequence[int]], Logits]
    name: str = "table"
    memory: int | None = None


def constant(p: Sequence[float], name: str = "constant") -> Table:
    """The same law at every position."""
    logits = np.log(np.asarray(p, dtype=np.float64))
    return Table(len(p), lambda context: logits, name, memory=0)


def markov(rows: Sequence[Sequence[float]], name: str = "markov") -> Table:
    """The law depends on the last token."""
    logits = np.log(np.asarray(rows, dtype=np.float64))
    return Table(len(rows), lambda context: logits[context[-1]], name, memory=1)


def counter(vocab_size: int, name: str = "counter") -> Table:
    """Next = last + 1 modulo the vocabulary, nearly certain: shows skips, repeats and leaks."""
    logits = 12.0 * np.eye(vocab_size)
    return Table(vocab_size, lambda context: logits[(context[-1] + 1) % vocab_size], name, memory=1)


PAIR_5_P = (0.50, 0.20, 0.15, 0.10, 0.05)
PAIR_5_Q = (0.20, 0.40, 0.10, 0.10, 0.20)
PAIR_5 = constant(PAIR_5_P, "pair-5")
PAIR_5_DRAFT = constant(PAIR_5_Q, "pair-5-draft")
MARKOV_ROWS = (
    (0.10, 0.50, 0.20, 0.15, 0.05),
    (0.30, 0.05, 0.45, 0.10, 0.10),
    (0.25, 0.25, 0.05, 0.40, 0.05),
    (0.05, 0.15, 0.30, 0.10, 0.40),
    (0.60, 0.10, 0.10, 0.15, 0.05),
)
MARKOV_5 = markov(MARKOV_ROWS, "markov-5")
MARKOV_5_DRAFT = markov([row[::-1] for row in MARKOV_ROWS], "markov-5-draft")


def letters_folder(folder: Path, vocab_size: int, *, eos_ids: Sequence[int] = ()) -> Path:
    """Token i is the i-th letter from FIRST_LETTER on. A config.json that a model has written there is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {chr(FIRST_LETTER + i): i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    eos = {"eos_token_id": list(eos_ids)} if eos_ids else {}
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": vocab_size}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 1.0, "do_sample": True, **eos}))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder
