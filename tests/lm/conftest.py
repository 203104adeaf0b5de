"""Tiny models of every family, saved once per test run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.lm.answers import answer_all
from specdec.lm.networks import NETWORKS
from specdec.lm.question import Answer, Question
from specdec.lm.runner import Runner
from tests.law_ways import WAYS, AnswerOne, serve_by
from tests.lm.served import serve
from tests.tiny_models import FAMILIES, make_tiny_model


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family -> model folder; Mistral's with a sliding window that is shorter than the contexts of the tests."""
    root = tmp_path_factory.mktemp("tiny")
    windows = {"mistral": {"sliding_window": 12}}
    return {
        family: make_tiny_model(root / family, family, seed=i, **windows.get(family, {}))
        for i, family in enumerate(FAMILIES)
    }


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on models this small only wait for each other, all the more beside other processes."""
    torch.set_num_threads(1)


@pytest.fixture(params=WAYS)
def answer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AnswerOne:
    """The answer to a question that has one, by each way."""
    serve_by(request.param, monkeypatch)

    def answer_one(question: Question, vocab_size: int) -> Answer:
        [result] = answer_all([question], vocab_size)
        assert isinstance(result, Answer)
        return result

    return answer_one


@pytest.fixture(scope="module", params=list(NETWORKS))
def runners(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> dict[str, Runner]:
    """By family, of one network after the other."""
    return {family: serve(folder, request.param) for family, folder in tiny_folders.items()}


@pytest.fixture(scope="module")
def stock(tiny_folders: dict[str, Path]) -> dict[str, Any]:
    """The same models with the attention and the masks of `transformers`."""
    return {
        family: AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
        for family, folder in tiny_folders.items()
    }
