"""Laws of target and draft in one process, without servers: what speculation is worth before any system takes its
share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.laws import draft_law, draw
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, TargetLaw, Verification, VerifyForm
from specdec.lm.id_map import IdMap
from specdec.lm.loading import LoadedModel
from specdec.lm.runner import Runner, Segment

Law = NDArray[np.float64]
ROWS = 32  # of one forward whose logits are kept: each is as wide as the vocabulary


class Model:
    """Laws of a loaded model at temperature 1, over its tokenizer's ids. ids: what the columns of its logits stand for,
    None: the ids themselves."""

    def __init__(self, loaded: LoadedModel, kv_tokens: int, ids: IdMap | None = None) -> None:
        self.vocab_size = loaded.vocab_size
        self._runner = Runner(loaded, kv_tokens)
        self._sequence = self._runner.new_sequence()
        self._ids = None if ids is None else torch.from_numpy(ids.target_ids.astype(np.int64))

    def laws(self, tokens: Sequence[int], start: int) -> Iterator[torch.Tensor]:
        """float64[vocabulary] behind each of tokens[start:], in order. What is left of an earlier call with the same
        beginning is not computed again."""
        assert 0 <= start < len(tokens), f"position {start} of {len(tokens)}"
        ids = np.array(tokens, dtype=np.uint32)
        self._sequence.rewind(ids[:start])
        while (begin := self._sequence.num_context) < len(ids):
            chunk = ids[begin : begin + ROWS]
            wanted = min(len(chunk), max(0, begin + len(chunk) - start))
            [logits] = self._runner.forward([Segment(self._sequence, chunk, wanted=wanted)])
            yield from self._softmax(logits)

    def law(self, tokens: Sequence[int]) -> Law:
        """float64[vocabulary] behind all of the tokens."""
        [law] = self.laws(tokens, len(tokens) - 1)
        return law.numpy()

    def sample(self, prompt: Sequence[int], new_tokens: int, rng: np.random.Generator) -> list[int]:
        """new_tokens drawn one after another; an end of text is a token like any other."""
        out: list[int] = []
        for _ in range(new_tokens):
            out.append(draw(self.law([*prompt, *out]), rng.random()))
        return out

    def chain(self, context: Sequence[int], k: int, support: int, rng: np.random.Generator) -> Draft:
        """k tokens, each drawn from its law cut to the `support` likeliest ids, as a drafter does it."""
        tokens, laws = list[int](), list[DraftLaw]()
        everything = np.arange(self.vocab_size, dtype=np.uint32)
        for _ in range(k):
            laws.append(draft_law(everything, self.law([*context, *tokens]), support))
            tokens.append(int(laws[-1].ids[draw(laws[-1].q, rng.random())]))
        return Draft(DraftTree.chain(tokens), DraftKind.SAMPLED, tuple(laws), "chain")

    def judge(self, context: Sequence[int], draft: Draft) -> Verification:
        """The laws of a chain on the draft's supports; nothing is drawn."""
        tokens = [*context, *draft.tree.token_ids.tolist()]
        laws = []
        for law, p in zip(draft.laws, self.laws(tokens, len(context) - 1), strict=False):
            inside = p[torch.from_numpy(law.ids.astype(np.int64))].numpy()
            laws.append(TargetLaw(law.ids, inside.astype(np.float32), max(0.0, 1.0 - float(inside.sum()))))
        drawn = np.full(draft.tree.num_nodes, NO_OUTSIDE, dtype=np.uint32)
        return Verification(VerifyForm.PQ, drawn, tuple(laws))

    def _softmax(self, logits: torch.Tensor) -> torch.Tensor:
        if self._ids is None:
            return torch.softmax(logits[:, : self.vocab_size].double(), dim=-1)
        laws = torch.zeros(len(logits), self.vocab_size, dtype=torch.float64)
        laws[:, self._ids] = torch.softmax(logits[:, : len(self._ids)].double(), dim=-1)
        return laws


@dataclass(frozen=True, slots=True)
class Overlap:
    """Sum of min(p, q) by position, of one text: with the whole q, with q cut to its likeliest ids, and with q
    restricted to a set of ids and cut."""

    whole: tuple[float, ...]
    cut: tuple[float, ...]
    restricted: tuple[float, ...]


def overlap(
    p: torch.Tensor, q: torch.Tensor, support: int, restricted: torch.Tensor | None
) -> tuple[float, float, float]:
    """1 - TV at one position. restricted: bool[vocabulary]; None: all ids."""
    inside = q if restricted is None else torch.where(restricted, q, 0.0)
    return _common(p, q), _common(p, _cut(q, support)), _common(p, _cut(inside, support))


def _cut(q: torch.Tensor, support: int) -> torch.Tensor:
    """q on its likeliest ids, as it travels."""
    law = draft_law(np.arange(len(q), dtype=np.uint32), q.numpy(), support)
    out = torch.zeros_like(q)
    out[torch.from_numpy(law.ids.astype(np.int64))] = torch.from_numpy(law.q)
    return out


def _common(p: torch.Tensor, q: torch.Tensor) -> float:
    return float(torch.minimum(p, q).sum())


def overlaps(
    target: Model,
    draft: Model,
    prompt: Sequence[int],
    answer: Sequence[int],
    support: int,
    restricted: torch.Tensor | None,
) -> Overlap:
    """Along one answer of the target's own."""
    tokens, start = [*prompt, *answer][:-1], len(prompt) - 1
    rows = [
        overlap(p, q, support, restricted)
        for p, q in zip(target.laws(tokens, start), draft.laws(tokens, start), strict=True)
    ]
    whole, cut, within = zip(*rows, strict=True)
    return Overlap(whole, cut, within)
