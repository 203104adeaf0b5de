"""Suffix decoding as a drafter: what followed these tokens before, in this session or in earlier outputs of the
replica, as a tree with its frequencies. No weights; fits any target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from draft_service.drafters import DraftJob, DraftModel
from draft_service.drafters.ngram import vocabulary_of
from draft_service.session import DraftSession
from specdec.core.draft import Draft
from specdec.core.errors import SpecdecError
from specdec.core.suffix import Guess, TokenIndex, propose
from specdec.core.tree import DraftTree, Ids

if TYPE_CHECKING:
    from draft_service.config import DraftConfig
    from specdec.edge.telemetry import ReplicaMetrics

SMALLEST, WINDOW = 1024, 65536  # tokens of one session's context that its index holds: doubles as the context grows
MOST_SALTS = 8  # shared indexes
LEAD = 8  # tokens before an output that are kept with it, so that how outputs begin is known too


class _Own:
    """One session's context, indexed. base: where the index begins in the context; turn_start: of the turn it is in."""

    def __init__(self) -> None:
        self.context: Ids = np.zeros(0, dtype=np.uint32)
        self.index = TokenIndex(SMALLEST)
        self.base = 0
        self.turn_start = 0

    def update(self, context: Ids, turn_start: int) -> None:
        n = min(len(self.context), len(context))
        changed = np.flatnonzero(self.context[:n] != context[:n])
        kept = int(changed[0]) if len(changed) else n
        gone = kept - self.base < self.index.length - self.index.capacity
        if gone or len(context) - self.base > self.index.capacity < WINDOW:
            self._begin(context)
        else:
            self.index.rewind(kept - self.base)
            self.index.extend(context[kept:])
        self.context, self.turn_start = context, turn_start

    def _begin(self, context: Ids) -> None:
        self.base = max(0, len(context) - WINDOW)
        wanted = len(context) - self.base
        self.index = TokenIndex(min(WINDOW, max(SMALLEST, 1 << wanted.bit_length())))
        self.index.extend(context[self.base :])

    @property
    def output(self) -> Ids:
        """What the turn has brought so far, and how it was led up to."""
        start = self.turn_start
        return self.context[max(0, start - LEAD) :] if len(self.context) > start else self.context[:0]


class SuffixDrafter:
    """Deterministic: CHOSEN whatever was asked for, num_draft_tokens counts nodes. An output is added to the shared
    index when its turn ends or its session closes; the index holds `shared_tokens`, the oldest out, 0: there is none,
    and sessions know their own context only."""

    kv_free = 0
    kv_total = 0

    def __init__(self, model: DraftModel, shared_tokens: int) -> None:
        self.model = replace(model, tree=True)
        self._own: dict[DraftSession, _Own] = {}
        self._shared_tokens = shared_tokens
        self._shared: dict[bytes, TokenIndex] = {}  # by cache salt, least recently used first

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        return [self._draft(job) for job in jobs]

    def close(self, session: DraftSession) -> None:
        if (own := self._own.pop(session, None)) is not None:
            self._remember(session, own)

    def _draft(self, job: DraftJob) -> Draft:
        own = self._own.setdefault(job.session, _Own())
        if job.turn_start != own.turn_start:
            self._remember(job.session, own)
        own.update(job.context, job.turn_start)
        shared = self._shared.get(job.session.cache_salt)
        indexes = [own.index] if shared is None else [own.index, shared]
        guess = _up_to_ends(propose(indexes, job.context, job.num_draft_tokens), job.params.end_ids)
        return Draft(guess.tree, drafter="suffix", score=guess.score)

    def _remember(self, session: DraftSession, own: _Own) -> None:
        """For sessions of the same salt only."""
        if not self._shared_tokens:
            return
        index = self._shared.pop(session.cache_salt, None) or TokenIndex(self._shared_tokens)
        self._shared[session.cache_salt] = index
        while len(self._shared) > MOST_SALTS:
            del self._shared[next(iter(self._shared))]
        index.extend(own.output)
        index.close()


def _up_to_ends(guess: Guess, end_ids: tuple[int, ...]) -> Guess:
    """Without the nodes behind an id that ends the turn: they would be verified in vain."""
    tree, kept = guess.tree, [0]
    if not np.isin(tree.token_ids, end_ids).any():
        return guess
    for node, parent in enumerate(tree.parents.tolist(), 1):
        if parent in kept and (not parent or tree.token(parent) not in end_ids):
            kept.append(node)
    renumbered = {node: i for i, node in enumerate(kept)}
    parents = [renumbered[int(tree.parents[node - 1])] for node in kept[1:]]
    ids = np.array([tree.token(node) for node in kept[1:]], dtype=np.uint32)
    return replace(guess, tree=DraftTree(ids, np.array(parents, dtype=np.int64)))


def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> SuffixDrafter:
    """As the n-gram's. Raises ConfigError."""
    return SuffixDrafter(vocabulary_of(config), config.suffix_tokens if config.suffix_shared else 0)
