"""Chains in the making: from contexts and the draft model's logits to draft tokens, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from draft_service.drafters import DraftJob
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import SpecdecError
from specdec.core.laws import draft_law, draw
from specdec.core.randomness import Purpose, coupled_choice, target_key, uniforms
from specdec.core.tree import DraftTree, Ids
from specdec.lm.answers import answer_all
from specdec.lm.histories import Histories
from specdec.lm.id_map import IdMap
from specdec.lm.kv import KVSequence
from specdec.lm.law import EmptyLaw
from specdec.lm.question import Answer, Question

_RACING = 256  # columns, the likeliest, among which a coupled draft over an id map is drawn


class Chain:
    """limit: draft tokens it may grow to. `outcome` is None until it is finished; `begun`: a forward has served it.

    The law of each draft token is what the target would form of the same logits. A CHOSEN chain takes what
    the target would draw from it: the argmax, or above temperature 0 the draw with the target's own noise
    (algorithms.md, section 6). A SAMPLED chain cuts it to the support and draws from the numbers it sends (section 5),
    number i of (seed, base) for node i.

    context: the job's in the model's own ids. ids: what the columns of its logits stand for, None: column v is token v.
    Over an id map, the law is that of the columns, and a draw with the target's noise is among the likeliest of them.
    drafter: whose name the draft bears."""

    def __init__(
        self,
        job: DraftJob,
        sequence: KVSequence,
        limit: int,
        *,
        context: Ids | None = None,
        ids: IdMap | None = None,
        drafter: str = "lm",
    ) -> None:
        self.job = job
        self.context = job.context if context is None else context
        self.sequence = sequence
        self.limit = limit
        self.ids = ids
        self._drafter = drafter
        self._params = job.params if ids is None else ids.params(job.params)
        self._counted = ids.columns(job.context) if ids is not None and job.params.penalised else job.context
        self._columns: list[int] = []
        self.outcome: Draft | SpecdecError | None = None
        self.begun = False
        self.tokens: list[int] = []
        self._laws: list[DraftLaw] = []
        self._survival = 1.0
        self._score = 0.0
        self._sampled = job.kind is not DraftKind.CHOSEN and not job.params.greedy
        self._numbers = uniforms(job.seed, len(job.context), Purpose.DRAFT, limit + 1) if self._sampled else None

    @property
    def catching_up(self) -> bool:
        """Whether context is still to be computed."""
        return self.sequence.num_context < len(self.context)

    @property
    def num_pending(self) -> int:
        """Known tokens to compute before the next one can be drafted, at least 1."""
        return len(self.context) + len(self.tokens) - self.sequence.num_context

    @property
    def pending(self) -> Ids:
        """uint32[num_pending]: they are all the context's or all drafts, which come after the context."""
        held, base = self.sequence.num_context, len(self.context)
        if held < base:
            return self.context[held:]
        drafted = np.array(self._columns[held - base :], dtype=np.uint32)
        return drafted if self.ids is None else self.ids.own_ids[drafted]

    def question(self, logits: torch.Tensor) -> Question:
        """What the next draft token depends on. logits: float32[1, at least columns], of the last known token."""
        job = self.job
        histories = Histories(self._counted, job.turn_start, (tuple(self._columns),))
        if self._sampled:
            return Question(logits, histories, self._params, likeliest=job.support)
        if self._racing:
            return Question(logits, histories, self._params, likeliest=_RACING)
        return Question(logits, histories, self._params, keys=[self._key], confidence=True)

    def extend(self, answer: Answer) -> None:
        """Draft one token. answer: to `question`."""
        column = self._drawn(answer) if self._sampled else self._chosen(answer)
        self._columns.append(column)
        self.tokens.append(column if self.ids is None else int(self.ids.target_ids[column]))
        if len(self.tokens) == self.limit or self.tokens[-1] in self.job.params.end_ids:
            self.finish()

    def finish(self) -> None:
        """What there is, is the draft."""
        kind = DraftKind.SAMPLED if self._sampled and self.tokens else DraftKind.CHOSEN
        coupled = kind is DraftKind.CHOSEN and bool(self.tokens) and not self.job.params.greedy
        tree = DraftTree.chain(self.tokens)
        self.outcome = Draft(tree, kind, tuple(self._laws), self._drafter, self._score, coupled)

    @property
    def _racing(self) -> bool:
        return self.ids is not None and not self.job.params.greedy

    @property
    def _key(self) -> int:
        """Of the target's noise at the next token's place in the target's context."""
        job = self.job
        return 0 if job.params.greedy else target_key(job.seed, len(job.context) + len(self.tokens))

    def _drawn(self, answer: Answer) -> int:
        """The column drawn from the law that is kept to be sent."""
        assert self._numbers is not None
        [(columns, p)] = answer.likeliest
        law = draft_law(columns, p, self.job.support)
        index = draw(law.q, float(self._numbers[len(self._laws) + 1]))
        self._laws.append(law if self.ids is None else DraftLaw(self.ids.target_ids[law.ids], law.weights))
        return int(law.ids[index])

    def _chosen(self, answer: Answer) -> int:
        """The column of the argmax or of the draw with the target's noise. Also counts the score, the sum over draft
        tokens of the probability that all up to it are right. A sampled chain has none: to choose among sampled drafts
        by what was drawn would bias the output (section 9)."""
        column, p = int(answer.drawn[0]), float(answer.p[0])
        if self._racing:
            assert self.ids is not None
            [(columns, law)] = answer.likeliest
            winner = coupled_choice(self.ids.target_ids[columns], law, self._key)
            column, p = int(columns[winner]), float(law[winner])
        self._survival *= p
        self._score += self._survival
        return column


def extend_all(chains: Sequence[Chain], logits: Sequence[torch.Tensor], vocab_size: int) -> list[SpecdecError | None]:
    """Draft one token in each chain, with the laws of all in one go. logits: as `Chain.question` has them. vocab_size:
    columns that may be drafted.

    One result per chain: None, or the EmptyLaw or BadLogits that has become its outcome. Only a whole vocabulary
    without a possible token is an error: a chain over an id map that has none ends there."""
    questions = [chain.question(last) for chain, last in zip(chains, logits, strict=True)]
    errors: list[SpecdecError | None] = []
    for chain, answer in zip(chains, answer_all(questions, vocab_size), strict=True):
        if isinstance(answer, EmptyLaw) and chain.ids is not None:
            errors.append(None)
            chain.finish()
        elif isinstance(answer, Answer):
            errors.append(None)
            chain.extend(answer)
        else:
            errors.append(answer)
            chain.outcome = answer
    return errors
