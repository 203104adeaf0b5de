"""Chains in the making: from contexts and the draft model's logits to draft tokens, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from draft_service.drafters import DraftJob
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import SpecdecError
from specdec.core.laws import draft_law, draw
from specdec.core.randomness import Purpose, target_key, uniforms
from specdec.core.tree import DraftTree, Ids
from specdec.lm.answers import answer_all
from specdec.lm.histories import Histories
from specdec.lm.kv import KVSequence
from specdec.lm.question import Answer, Question


class Chain:
    """limit: draft tokens it may grow to. `outcome` is None until it is finished; `begun`: a forward has served it.

    The law of each draft token is what the target would form of the same logits. A CHOSEN chain takes what
    the target would draw from it: the argmax, or above temperature 0 the draw with the target's own noise
    (algorithms.md, section 6). A SAMPLED chain cuts it to the support and draws from the numbers it sends (section 5),
    number i of (seed, base) for node i."""

    def __init__(self, job: DraftJob, sequence: KVSequence, limit: int) -> None:
        self.job = job
        self.sequence = sequence
        self.limit = limit
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
        return self.sequence.num_context < len(self.job.context)

    @property
    def num_pending(self) -> int:
        """Known tokens to compute before the next one can be drafted, at least 1."""
        return len(self.job.context) + len(self.tokens) - self.sequence.num_context

    @property
    def pending(self) -> Ids:
        """uint32[num_pending]: they are all the context's or all drafts, which come after the context."""
        held, base = self.sequence.num_context, len(self.job.context)
        if held < base:
            return self.job.context[held:]
        return np.array(self.tokens[held - base :], dtype=np.uint32)

    def question(self, logits: torch.Tensor) -> Question:
        """What the next draft token depends on. logits: float32[1, padded vocabulary], of the last known token."""
        job = self.job
        histories = Histories(job.context, job.turn_start, (tuple(self.tokens),))
        if self._sampled:
            return Question(logits, histories, job.params, likeliest=job.support)
        key = 0 if job.params.greedy else target_key(job.seed, len(job.context) + len(self.tokens))
        return Question(logits, histories, job.params, keys=[key], confidence=True)

    def extend(self, answer: Answer) -> None:
        """Draft one token. answer: to `question`."""
        self.tokens.append(self._drawn(answer) if self._sampled else self._chosen(answer))
        if len(self.tokens) == self.limit or self.tokens[-1] in self.job.params.end_ids:
            self.finish()

    def finish(self) -> None:
        """What there is, is the draft."""
        kind = DraftKind.SAMPLED if self._sampled and self.tokens else DraftKind.CHOSEN
        coupled = kind is DraftKind.CHOSEN and bool(self.tokens) and not self.job.params.greedy
        tree = DraftTree.chain(self.tokens)
        self.outcome = Draft(tree, kind, tuple(self._laws), "lm", self._score, coupled)

    def _drawn(self, answer: Answer) -> int:
        assert self._numbers is not None
        [(ids, p)] = answer.likeliest
        law = draft_law(ids, p, self.job.support)
        self._laws.append(law)
        return int(law.ids[draw(law.q, float(self._numbers[len(self._laws)]))])

    def _chosen(self, answer: Answer) -> int:
        """Also counts the score, the sum over draft tokens of the probability that all up to it are right. A sampled
        chain has none: to choose among sampled drafts by what was drawn would bias the output (section 9)."""
        self._survival *= float(answer.p[0])
        self._score += self._survival
        return int(answer.drawn[0])


def extend_all(chains: Sequence[Chain], logits: Sequence[torch.Tensor], vocab_size: int) -> list[SpecdecError | None]:
    """Draft one token in each chain, with the laws of all in one go. logits: as `Chain.question` has them.

    One result per chain: None, or the EmptyLaw or BadLogits that has become its outcome."""
    questions = [chain.question(last) for chain, last in zip(chains, logits, strict=True)]
    errors: list[SpecdecError | None] = []
    for chain, answer in zip(chains, answer_all(questions, vocab_size), strict=True):
        errors.append(None if isinstance(answer, Answer) else answer)
        if isinstance(answer, Answer):
            chain.extend(answer)
        else:
            chain.outcome = answer
    return errors
