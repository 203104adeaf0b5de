"""Prompt lookup as a drafter: free, good at copying, fits any target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

_WEIGHT = 0.2  # of the newest draft in the running mean


@dataclass(frozen=True, slots=True)
class _Last:
    """A session's last draft, made for `base` tokens of context; right: tokens that its drafts got right, a running
    mean, None before the first is known."""

    base: int
    guesses: Ids
    right: float | None = None


class NgramDrafter:
    """Proposes what followed the context's last tokens before. Deterministic: CHOSEN whatever was asked for. Score: the
    tokens that this session's earlier drafts got right, a running mean."""

    kv_free = 0
    kv_total = 0

    def __init__(self, model: DraftModel) -> None:
        self.model = model
        self._last: dict[DraftSession, _Last] = {}

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        return [self._draft(job) for job in jobs]

    def close(self, session: DraftSession) -> None:
        self._last.pop(session, None)

    def _draft(self, job: DraftJob) -> Draft:
        guesses = _up_to_end(ngram.propose(job.context, job.num_draft_tokens), job.params.end_ids)
        right = self._right(job)
        self._last[job.session] = _Last(len(job.context), guesses, right)
        return Draft(DraftTree.chain(guesses), drafter="ngram", score=min(right or 0.0, len(guesses)))

    def _right(self, job: DraftJob) -> float | None:
        last = self._last.get(job.session)
        if last is None:
            return None
        came = job.context[last.base :][: len(last.guesses)]
        if not len(came):
            return last.right
        wrong = np.flatnonzero(came != last.guesses[: len(came)])
        right = float(wrong[0]) if len(wrong) else float(len(came))
        return right if last.right is None else last.right + _WEIGHT * (right - last.right)


def _up_to_end(guesses: Ids, end_ids: tuple[int, ...]) -> Ids:
    """Guesses up to the first id that ends the turn: what lies beyond would be verified in vain."""
    ends = np.flatnonzero(np.isin(guesses, end_ids))
    return guesses[: ends[0] + 1] if len(ends) else guesses


def build(config: DraftConfig, metrics: ReplicaMetrics) -> NgramDrafter:
    """Reads no more of a model folder than its tokenizer, and not even that where a language model beside it says which
    vocabulary is served. Raises ConfigError."""
    alone = config.model is not None and "lm" not in config.drafters
    return NgramDrafter(_vocabulary(Path(str(config.model))) if alone else DraftModel())


def _vocabulary(folder: Path) -> DraftModel:
    try:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        return DraftModel(vocab_size=tokenizer_vocab_size(text), tokenizer_hash=tokenizer_hash(text))
    except (OSError, ValueError) as error:
        remedy = f"no folder with a tokenizer.json ({error}); without a model, ngram fits any target"
        raise ConfigError("model", str(folder), remedy) from error
