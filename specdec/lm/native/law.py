"""Laws, draws and look-ups by law.c: one call for all nodes of all sessions."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.core.tree import Ids
from specdec.core.verification import NO_OUTSIDE
from specdec.lm.edits import Edits, edits_of
from specdec.lm.law import BadLogits, EmptyLaw
from specdec.lm.native.structs import Laws
from specdec.lm.question import Answer, Question

# `Row` and `Answer` of law.c.
_ROW = struct.Struct("=QddddQqqqqqqqq")
_ANSWER = np.dtype([("status", "i8"), ("drawn", "i8"), ("likeliest", "i8"), ("p", "f8"), ("tail", "f8")])
_OK, _BAD, _EMPTY, _UNDECIDED = range(4)
_NOTHING, _RACE, _OUTSIDE = range(3)
_EDITS = ("ids", "bias", "repetition", "penalty")
_NO_IDS: Ids = np.zeros(0, dtype=np.uint32)


class NativeLaws:
    """Answers from host memory. library: holds `specdec_laws`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.specdec_laws
        self._run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
        self._run.restype = None

    def __call__(self, questions: Sequence[Question], vocab_size: int) -> list[Answer | EmptyLaw | BadLogits | None]:
        """One result per question; None: rounding could decide, and law.py has to."""
        batch = _Batch(vocab_size, max((q.likeliest for q in questions), default=0))
        for question in questions:
            batch.add(question)
        answers = batch.run(self._run)
        return [batch.result(i, answers) for i in range(len(questions))]


class _Batch:
    """The rows of a call: nodes in the order of the questions."""

    def __init__(self, vocab_size: int, likeliest: int) -> None:
        self._vocab_size = vocab_size
        self._likeliest = likeliest
        self._questions: list[tuple[Question, int]] = []  # with the row of the first node
        self._logits: list[torch.Tensor] = []  # kept alive
        self._rows: list[bytes] = []
        self._edits: list[Edits] = []
        self._num_edits = 0
        self._looks: list[Ids] = []
        self._look_ends = [0]

    def add(self, question: Question) -> None:
        params, nodes = question.params, question.logits.shape[0]
        logits = question.logits if question.logits.stride(1) == 1 else question.logits.contiguous()
        assert logits.dtype is torch.float32, "logits are float32"
        assert logits.shape[1] >= self._vocab_size, "a logit for every token"
        self._questions.append((question, len(self._rows)))
        self._logits.append(logits)
        edits = self._edited(edits_of(question.histories, params, self._vocab_size), nodes)
        first, stride = logits.data_ptr(), 4 * logits.stride(0)
        temperature = 0.0 if params.greedy else params.temperature
        top_k = params.top_k if 0 < params.top_k < self._vocab_size and temperature else 0
        draw = _RACE if question.keys is not None else _OUTSIDE if question.us is not None else _NOTHING
        for node in range(nodes):
            looked = question.looks[node] if question.looks else _NO_IDS
            self._looks.append(looked)
            begin, end = self._look_ends[-1], self._look_ends[-1] + len(looked)
            self._look_ends.append(end)
            u = question.us[node] if question.us is not None else 0.0
            key = question.keys[node] if question.keys is not None else 0
            self._rows.append(
                _ROW.pack(
                    *(first + node * stride, temperature, params.top_p, params.min_p, u, key),
                    *(top_k, edits[node], edits[node + 1], begin, end, draw),
                    *(question.likeliest, question.confidence),
                )
            )

    def run(self, function: ctypes._NamedFuncPointer) -> NDArray[np.void]:
        n = len(self._rows)
        self._look_p = np.empty(self._look_ends[-1])
        self._likeliest_ids = np.empty((n, self._likeliest), dtype=np.uint32)
        self._likeliest_p = np.empty((n, self._likeliest))
        columns = [
            *(np.concatenate([getattr(e, name) for e in self._edits] or [_NO_IDS]) for name in _EDITS),
            *(np.concatenate(self._looks).astype(np.uint32, copy=False), self._look_p),
            *(self._likeliest_ids, self._likeliest_p),
        ]
        shared = Laws(self._vocab_size, self._likeliest, *(column.ctypes.data for column in columns))
        answers = np.zeros(n, dtype=_ANSWER)
        answers["drawn"] = NO_OUTSIDE
        function(b"".join(self._rows), answers.ctypes.data, n, ctypes.byref(shared), torch.get_num_threads())
        return answers

    def result(self, i: int, answers: NDArray[np.void]) -> Answer | EmptyLaw | BadLogits | None:
        question, first = self._questions[i]
        last = first + question.logits.shape[0]
        mine = answers[first:last]
        status = mine["status"]
        if status.any():
            if (status == _BAD).any():
                return BadLogits()
            return EmptyLaw() if (status == _EMPTY).any() else None
        ends = self._look_ends
        looked = tuple(self._look_p[ends[row] : ends[row + 1]] for row in range(first, last)) if question.looks else ()
        counts = mine["likeliest"].tolist() if question.likeliest else []
        likeliest = tuple(
            (self._likeliest_ids[first + node, :m], self._likeliest_p[first + node, :m])
            for node, m in enumerate(counts)
        )
        return Answer(mine["drawn"].astype(np.uint32), mine["p"], looked, mine["tail"], likeliest)

    def _edited(self, edits: Edits | None, nodes: int) -> list[int]:
        """Where each node's edits begin, and the last one's end."""
        if edits is None:
            return [self._num_edits] * (nodes + 1)
        bounds: list[int] = (self._num_edits + np.searchsorted(edits.rows, np.arange(nodes + 1))).tolist()
        self._edits.append(edits)
        self._num_edits += len(edits.ids)
        return bounds
