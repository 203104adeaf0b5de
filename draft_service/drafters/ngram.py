"""Prompt lookup as a drafter: free, good at copying, fits any target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from draft_service.drafters import DraftJob, DraftModel
from draft_service.session import DraftSession
from specdec.core import ngram
from specdec.core.draft import Draft
from specdec.core.errors import ConfigError, SpecdecError
from specdec.core.tokenizer_hash import tokenizer_hash, tokenizer_vocab_size
from specdec.core.tree import DraftTree, Ids

if TYPE_CHECKING:
    from draft_service.config import DraftConfig
    from specdec.edge.telemetry import ReplicaMetrics


class NgramDrafter:
    """Proposes what followed the context's last tokens before. Deterministic: CHOSEN whatever was asked for. Score: by
    the length of the match."""

    kv_free = 0
    kv_total = 0

    def __init__(self, model: DraftModel) -> None:
        self.model = model

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        return [_draft(job) for job in jobs]

    def close(self, session: DraftSession) -> None:
        """Nothing is kept."""


def _draft(job: DraftJob) -> Draft:
    found = ngram.lookup(job.context, job.num_draft_tokens)
    guesses = _up_to_end(found.ids, job.params.end_ids)
    return Draft(DraftTree.chain(guesses), drafter="ngram", score=found.score(len(guesses)))


def _up_to_end(guesses: Ids, end_ids: tuple[int, ...]) -> Ids:
    """Guesses up to the first id that ends the turn: what lies beyond would be verified in vain."""
    ends = np.flatnonzero(np.isin(guesses, end_ids))
    return guesses[: ends[0] + 1] if len(ends) else guesses


def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> NgramDrafter:
    """Raises ConfigError."""
    return NgramDrafter(vocabulary_of(config))


def vocabulary_of(config: DraftConfig) -> DraftModel:
    """For a drafter without weights: no more of the model folder than its tokenizer, and not even that where a model
    beside it says which vocabulary is served. Raises ConfigError."""
    if config.model is None or config.has_weights:
        return DraftModel()
    folder = Path(config.model)
    try:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        return DraftModel(vocab_size=tokenizer_vocab_size(text), tokenizer_hash=tokenizer_hash(text))
    except (OSError, ValueError) as error:
        remedy = f"no folder with a tokenizer.json ({error}); without a model, ngram and suffix fit any target"
        raise ConfigError("model", str(folder), remedy) from error
