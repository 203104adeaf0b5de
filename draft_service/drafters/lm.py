"""A small language model as drafter: chains, with KV of its own, batched over sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from draft_service.drafters import DraftJob, DraftModel
from draft_service.drafters.chain import Chain, extend_all
from draft_service.drafters.forward_cost import ForwardCost
from draft_service.session import DraftSession
from specdec.core.draft import Draft
from specdec.core.errors import InvalidArgument, ReplicaFault, ResourceExhausted, SpecdecError
from specdec.core.tree import Ids
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.answers import native_laws
from specdec.lm.draft_model import DraftLM, load_draft_model
from specdec.lm.id_map import IdMap
from specdec.lm.kv import KVSequence
from specdec.lm.loading import LoadedModel
from specdec.lm.runner import Runner, Segment
from specdec.lm.translation import TranslatedContext, Translation

if TYPE_CHECKING:
    from draft_service.config import DraftConfig

_SHORT = 8  # rows that cost a forward hardly more than one does


class LmDrafter:
    """Each forward takes of every session what it has pending: context not computed yet, in chunks, at most
    `token_budget` rows of all sessions together, or its last draft token. A session's KV stays between jobs; the
    longest prefix that it shares with the next context, drafts that came true included, is not computed again, nor are
    the full blocks of any session's context, this one's or another's, that the prefix cache still has.

    A job that would miss its deadline with one more forward is answered with the tokens it has, none while its
    context is not computed; what was computed stays. When the pool is full, the sessions least recently drafted for
    lose their KV, and compute it again when they come back.

    ids: what the columns of the logits stand for, None: column v is token v. translation: of contexts into the model's
    own ids, None: they are the same. name: the drafter's, as its drafts bear it."""

    def __init__(
        self,
        runner: Runner,
        metrics: ReplicaMetrics,
        *,
        token_budget: int,
        ids: IdMap | None = None,
        translation: Translation | None = None,
        name: str = "lm",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._ids = ids
        self._translation = translation
        self._name = name
        self._metrics = metrics
        self._token_budget = token_budget
        self._clock = clock
        self._cost = ForwardCost()
        self._evictions = 0
        self._sequences: dict[DraftSession, KVSequence] = {}  # least recently used first
        self._chains: dict[DraftSession, Chain] = {}  # of jobs that come again
        self._translated: dict[DraftSession, TranslatedContext] = {}
        self.kv_total = self.kv_free = runner.pool.capacity
        self.model = _identity(runner.loaded, self.kv_total)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        busy = {job.session for job in jobs}
        assert len(busy) == len(jobs), "two jobs of one session"
        chains = [self._chain(job, busy) for job in jobs]
        while all(chain.outcome is None for chain in chains) and (batch := self._plan(chains)):
            self._forward(batch)
            if any(chain.catching_up for chain in chains):
                break
        self._chains = {chain.job.session: chain for chain in chains if chain.outcome is None}
        self._account()
        return [chain.outcome for chain in chains]

    def close(self, session: DraftSession) -> None:
        self._chains.pop(session, None)
        self._translated.pop(session, None)
        if (sequence := self._sequences.pop(session, None)) is not None:
            sequence.release()
        self._account()

    def warm_up(self) -> None:
        """First forwards are slow and say nothing about the later ones: not to be learned from, nor waited for."""
        native_laws()
        for rows in (1, min(self._token_budget, self.model.max_context)):
            for attempt in range(2):
                sequence = self._runner.new_sequence()
                begun = self._clock()
                self._runner.forward([Segment(sequence, np.zeros(rows, dtype=np.uint32), wanted=1)])
                if attempt:
                    self._cost.observe(rows, self._clock() - begun)
                sequence.discard()  # nobody's context

    def _chain(self, job: DraftJob, busy: set[DraftSession]) -> Chain:
        """The job's chain: as it was left, or begun, or finished already where there is nothing to do."""
        chain = self._chains.get(job.session)
        if chain is not None and chain.job is job:
            return chain
        sequence = self._sequences.pop(job.session, None) or self._runner.new_sequence(job.session.cache_salt)
        self._sequences[job.session] = sequence
        context = self._own(job)
        room = self.model.max_context - len(context)
        limit = max(0, min(job.num_draft_tokens, room)) if len(context) else 0
        chain = Chain(job, sequence, limit, context=context, ids=self._ids, drafter=self._name)
        if (error := self._refusal(job)) is not None:
            chain.outcome = error
        elif not chain.limit:
            sequence.release()  # a context beyond the window only grows
            chain.finish()
        elif not self._reserve(chain, busy):
            chain.finish()
        return chain

    def _own(self, job: DraftJob) -> Ids:
        """The job's context in the model's own ids."""
        if self._translation is None:
            return job.context
        translated = self._translated.setdefault(job.session, TranslatedContext(self._translation))
        return translated.update(job.context)

    def _refusal(self, job: DraftJob) -> SpecdecError | None:
        if not len(job.context):
            return InvalidArgument("token_ids", [], "a language model needs at least one token of context")
        biased = max((id_ for id_, _ in job.params.logit_bias), default=0)
        if biased >= self.model.vocab_size:
            remedy = f"must be below the vocabulary size {self.model.vocab_size}"
            return InvalidArgument("logit_bias_ids", biased, remedy)
        return None

    def _reserve(self, chain: Chain, busy: set[DraftSession]) -> bool:
        """Makes room for context and draft, taking it from idle sessions; where that is not enough, the draft is cut.
        Whether there is room for anything."""
        context, sequence = chain.context, chain.sequence
        self._metrics.kv_hit_tokens.add(sequence.rewind(context[:-1]), tier="memory")
        self._metrics.kv_hit_tokens.add(sequence.adopt(context[:-1]), tier="prefix")
        idle = iter([session for session in self._sequences if session not in busy])
        while True:
            try:
                sequence.reserve(len(context) - 1 + chain.limit)
                return True
            except ResourceExhausted:
                victim = next(idle, None)
            if victim is not None:
                self._sequences.pop(victim).release()
                continue
            chain.limit = sequence.room - (len(context) - 1)
            if chain.limit < 1:
                return False

    def _plan(self, chains: list[Chain]) -> list[tuple[Chain, Ids]]:
        """The next forward: which tokens of which chains, the shortest first, so that a long context does not hold up
        the others. Empty where chains have no time left for a forward: those are finished."""
        now = self._clock()
        waiting = sorted(chains, key=lambda chain: chain.job.deadline)
        for i, chain in enumerate(waiting):
            if rows := self._rows_in_time(waiting[i:], now):
                return [] if i else _packed(waiting, rows)
            if chain.job.deadline > now and not chain.begun:
                self._cost.doubt()
            chain.finish()
        return []

    def _rows_in_time(self, waiting: list[Chain], now: float) -> int:
        """Rows of a forward that ends in time for the first of `waiting`, 0 if none does. Long contexts beside it get
        what leaves time for the tokens that all have yet to draft, and the few rows that cost hardly anything."""
        hurried = waiting[0]
        left = hurried.job.deadline - now
        if left <= 0:
            return 0
        pace = min((chain.job.deadline - now) / (chain.limit - len(chain.tokens)) for chain in waiting)
        wanted = min(self._token_budget, sum(chain.num_pending for chain in waiting))
        short = sum(n for chain in waiting if (n := chain.num_pending) <= _SHORT)
        least = min(wanted, max(short, hurried.num_pending))
        choices = (pace, wanted), (left, least), (left, min(wanted, least + _SHORT))
        return max(self._cost.rows_within(seconds, rows) for seconds, rows in choices)

    def _forward(self, batch: list[tuple[Chain, Ids]]) -> None:
        begun = self._clock()
        segments = [Segment(chain.sequence, ids, wanted=int(len(ids) == chain.num_pending)) for chain, ids in batch]
        for chain, ids in batch:
            chain.begun = True
            chain.job.session.computed_tokens += len(ids) if chain.catching_up else 0
        logits = self._runner.forward(segments)
        ready = [(chain, last) for (chain, _), last in zip(batch, logits, strict=True) if len(last)]
        self._extend([chain for chain, _ in ready], [last for _, last in ready])
        rows, seconds = sum(segment.rows for segment in segments), self._clock() - begun
        self._cost.observe(rows, seconds)
        self._metrics.forwards.add()
        self._metrics.rows.add(rows)
        self._metrics.batch_size.record(len(batch))
        self._metrics.compute_seconds.record(seconds)

    def _extend(self, chains: list[Chain], logits: list[torch.Tensor]) -> None:
        errors = extend_all(chains, logits, self.model.vocab_size if self._ids is None else len(self._ids))
        self._metrics.draws.add(errors.count(None))
        for chain, error in zip(chains, errors, strict=True):
            if isinstance(error, ReplicaFault):
                chain.sequence.discard()  # what made NaN once makes it again

    def _account(self) -> None:
        pool = self._runner.pool
        self.kv_free = pool.kv_free
        evictions, self._evictions = pool.evictions - self._evictions, pool.evictions
        self._metrics.kv_evictions.add(evictions)


def _packed(chains: list[Chain], rows: int) -> list[tuple[Chain, Ids]]:
    batch = []
    for chain in sorted(chains, key=lambda chain: chain.num_pending):
        if len(ids := chain.pending[:rows]):
            batch.append((chain, ids))
            rows -= len(ids)
    return batch


def _identity(loaded: LoadedModel, kv_tokens: int) -> DraftModel:
    return DraftModel(
        name=loaded.name,
        fingerprint=loaded.fingerprint,
        vocab_size=loaded.vocab_size,
        tokenizer_hash=loaded.tokenizer_hash,
        dtype=loaded.dtype,
        max_context=min(loaded.max_context, kv_tokens),
        eos_ids=loaded.eos_ids,
    )


def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> LmDrafter:
    """Loads the model, `argument` or else `--model`: blocking, seconds to minutes. Raises ConfigError."""
    path = argument or config.model
    assert path is not None, "checked by the configuration"

    load = partial(
        load_draft_model,
        path,
        target=config.target_model,
        dtype=config.precision,
        device=config.device,
        num_layers=config.num_layers,
        network=config.network,
        head_ids=config.head_ids,
        tli=config.tli,
    )
    return warm_drafter(load, config, metrics, "lm")


def warm_drafter(load: Callable[[], DraftLM], config: DraftConfig, metrics: ReplicaMetrics, name: str) -> LmDrafter:
    """Ready to draft, under the name of its entry."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    draft = load()
    drafter = LmDrafter(
        Runner(draft.loaded, config.kv_tokens),
        metrics,
        token_budget=config.token_budget,
        ids=draft.ids,
        translation=draft.translation,
        name=name,
    )
    drafter.warm_up()
    return drafter
