"""The ways there are to answer questions about laws, each made the one that serves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specdec.lm.answers import native_laws
from specdec.lm.question import Answer, Question

WAYS = ("native", "torch", "device")

AnswerOne = Callable[[Question, int], Answer]


def serve_by(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """device: the torch path as on a GPU, here on the CPU."""
    if way == "native":
        if native_laws() is None:
            pytest.skip("no C compiler")
        return
    monkeypatch.setattr("specdec.lm.answers.native_laws", lambda: None)
    if way == "device":
        monkeypatch.setattr("specdec.lm.draw._row_by_row", lambda p: False)
