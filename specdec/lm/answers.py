"""Answers to questions about laws: by the C in host memory, else in torch, on whatever device the logits are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import cache

import numpy as np
import torch

from specdec.core.tree import Ids
from specdec.core.verification import NO_OUTSIDE
from specdec.lm.draw import draw_y, looked_up, outside_draws, padded
from specdec.lm.law import BadLogits, EmptyLaw, Laws, joint_laws, running_sums, top_k_ids, treatment
from specdec.lm.native.law import NativeLaws
from specdec.lm.native.library import library
from specdec.lm.networks import Unsupported
from specdec.lm.question import Answer, Question
from specdec.lm.staging import fetched

Result = Answer | EmptyLaw | BadLogits
# What answers in host memory: None where rounding could decide, and torch has to.
HostAnswers = Callable[[Sequence[Question], int], Sequence[Result | None]]

# Nodes whose laws are in memory at the same time, several times over, as wide as the vocabulary.
_ROWS_IN_HOST_MEMORY = 16
_ROWS_ON_A_DEVICE = 256

_NO_IDS: Ids = np.zeros(0, dtype=np.uint32)
_log = logging.getLogger(__name__)


def answer_all(questions: Sequence[Question], vocab_size: int) -> list[Result]:
    """One result per question. A question whose laws cannot be formed gets its error and harms no other; no answer
    depends on what else is asked. Greedy is below GREEDY_BELOW; vocab_size: the tokenizer's, ids from there on have
    probability 0."""
    if not questions:
        return []
    native = native_laws() if all(question.logits.device.type == "cpu" for question in questions) else None
    return _answered(questions, vocab_size, native)


def _answered(questions: Sequence[Question], vocab_size: int, native: HostAnswers | None) -> list[Result]:
    results: list[Result | None] = [None] * len(questions)
    known = [i for i, question in enumerate(questions) if native and not question.entropy]  # the C has no logarithms
    if native and known:
        answers = native([questions[i] for i in known], vocab_size)
        for i, result in zip(known, answers, strict=True):
            results[i] = result
    left = [i for i, result in enumerate(results) if result is None]
    for i, result in zip(left, answers_in_torch([questions[i] for i in left], vocab_size), strict=True):
        results[i] = result
    return [result for result in results if result is not None]


@cache
def native_laws() -> HostAnswers | None:
    """The C, compiled on first use, which takes seconds: services ask for it before they serve. None where it cannot be
    had."""
    try:
        return NativeLaws(library())
    except Unsupported as reason:
        _log.info("laws in torch: %s", reason)
        return None


def answers_in_torch(questions: Sequence[Question], vocab_size: int) -> list[Result]:
    """As `answer_all`; each group of equal treatment at once, without a synchronisation per node."""
    groups: dict[Hashable, list[list[int]]] = {}
    for i, question in enumerate(questions):
        on_cpu = question.logits.device.type == "cpu"
        drawn = question.keys is not None, question.us is not None
        rest = question.likeliest, question.confidence, question.entropy, question.logits.device
        batches = groups.setdefault((treatment(question.params, vocab_size), drawn, rest), [[]])
        rows = question.logits.shape[0] + sum(len(questions[other].logits) for other in batches[-1])
        if batches[-1] and rows > (_ROWS_IN_HOST_MEMORY if on_cpu else _ROWS_ON_A_DEVICE):
            batches.append([])
        batches[-1].append(i)
    results: dict[int, Result] = {}
    for batches in groups.values():
        for batch in batches:
            asked = [questions[i] for i in batch]
            results |= zip(batch, _Group(asked, joint_laws(asked, vocab_size)).results(), strict=True)
    return [results[i] for i in range(len(questions))]


class _Group:
    """Questions of one kind, their nodes in one tensor. All is computed before the first of it is fetched."""

    def __init__(self, questions: Sequence[Question], laws: Laws) -> None:
        self._questions = questions
        self._laws = laws
        first, n = questions[0], len(laws.p)
        device = laws.p.device
        looks = padded([row for q in questions for row in (q.looks or [_NO_IDS] * len(q.logits))], NO_OUTSIDE)
        self._looked, at, held = looked_up(laws, torch.from_numpy(looks).to(device, non_blocking=True))
        columns, self._tails = torch.zeros((n, 1), dtype=torch.int64, device=device), torch.zeros(n, device=device)
        if first.keys is not None:
            columns = draw_y(laws, [key for q in questions for key in q.keys or ()])
        elif first.us is not None:
            us = np.array([u for q in questions for u in q.us or ()], dtype=np.float64)[:, None]
            columns, self._tails = outside_draws(laws, at, held, torch.from_numpy(us).to(device, non_blocking=True))
        self._drawn = columns if laws.ids is None else laws.ids.gather(-1, columns)
        if first.params.greedy and first.confidence:
            self._p = torch.softmax(laws.raw.double(), dim=-1).gather(-1, self._drawn)
        else:
            self._p = laws.p.gather(-1, columns)
        self._likeliest = _likeliest(laws, first.likeliest) if first.likeliest else None
        self._entropies = running_sums(torch.special.entr(laws.p)).clamp_(min=0.0) if first.entropy else None

    def results(self) -> list[Result]:
        laws = self._laws
        wanted = torch.zeros_like(self._p) if self._entropies is None else self._entropies
        bad, empty, drawn, p, tails, looked, entropies, *likeliest = fetched(
            [laws.bad, laws.empty, self._drawn, self._p, self._tails, self._looked, wanted, *(self._likeliest or ())]
        )
        results: list[Result] = []
        first = 0
        for question in self._questions:
            mine = slice(first, first + question.logits.shape[0])
            first = mine.stop
            if bad[mine].any() or empty[mine].any():
                results.append(BadLogits() if bad[mine].any() else EmptyLaw())
                continue
            asked = zip(looked[mine], question.looks, strict=True) if question.looks else ()
            pairs = zip(*(column[mine] for column in likeliest), strict=True) if likeliest else ()
            results.append(
                Answer(
                    drawn=drawn[mine, 0].astype(np.uint32),
                    p=p[mine, 0],
                    looked=tuple(row[: len(ids)] for row, ids in asked),
                    tails=tails[mine].astype(np.float64),
                    likeliest=tuple((ids.astype(np.uint32), p) for ids, p in pairs),
                    entropies=entropies[mine, 0] if question.entropy else None,
                )
            )
        return results


def _likeliest(laws: Laws, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64[nodes, m], p) of the n likeliest tokens of each law, ids ascending."""
    columns = top_k_ids(laws.p, min(n, laws.p.shape[1]))
    return columns if laws.ids is None else laws.ids.gather(-1, columns), laws.p.gather(-1, columns)
