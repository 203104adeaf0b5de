"""One chain in the making: from a context and the draft model's logits to draft tokens, one by one."""

from __future__ import annotations

import numpy as np
import torch

from draft_service.drafters import DraftJob
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import SpecdecError
from specdec.core.laws import draft_law, draw
from specdec.core.randomness import Purpose, target_key, uniforms
from specdec.core.tree import DraftTree, Ids
from specdec.lm.draw import draw_y
from specdec.lm.kv import KVSequence
from specdec.lm.law import Histories, Laws, target_laws


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

    def extend(self, logits: torch.Tensor, vocab_size: int) -> None:
        """Draft one token. logits: float32[1, padded vocabulary], those of the last known token.

        Raises EmptyLaw or BadLogits."""
        job = self.job
        histories = Histories(job.context, job.turn_start, (tuple(self.tokens),))
        laws = target_laws(logits, histories, job.params, vocab_size)
        self.tokens.append(self._drawn(laws) if self._sampled else self._chosen(laws))
        if len(self.tokens) == self.limit or self.tokens[-1] in job.params.end_ids:
            self.finish()

    def finish(self) -> None:
        """What there is, is the draft."""
        kind = DraftKind.SAMPLED if self._sampled and self.tokens else DraftKind.CHOSEN
        coupled = kind is DraftKind.CHOSEN and bool(self.tokens) and not self.job.params.greedy
        tree = DraftTree.chain(self.tokens)
        self.outcome = Draft(tree, kind, tuple(self._laws), "lm", self._score, coupled)

    def _drawn(self, laws: Laws) -> int:
        assert self._numbers is not None
        law = draft_law(*laws.row(0), self.job.support)
        self._laws.append(law)
        return int(law.ids[draw(law.q, float(self._numbers[len(self._laws)]))])

    def _chosen(self, laws: Laws) -> int:
        """Also counts the score, the sum over draft tokens of the probability that all up to it are right. A sampled
        chain has none: to choose among sampled drafts by what was drawn would bias the output (section 9)."""
        position = len(self.job.context) + len(self.tokens)
        y = int(draw_y(laws, [target_key(self.job.seed, position)])[0])
        if self.job.params.greedy:
            confidence = float(torch.softmax(laws.raw[0], -1)[y])
        else:
            ids, p = laws.row(0)
            confidence = float(p[np.searchsorted(ids, y)])
        self._survival *= confidence
        self._score += self._survival
        return y
