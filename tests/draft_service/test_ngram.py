"""The n-gram drafter: what core proposes, never more than asked, with a score it has earned."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draft_service.config import DraftConfig
from draft_service.drafters import DraftModel
from draft_service.drafters.ngram import NgramDrafter, build
from specdec.core import ngram
from specdec.core.draft import DraftKind
from specdec.core.errors import ConfigError
from specdec.core.sampling import SamplingParams
from specdec.core.tokenizer_hash import tokenizer_hash, tokenizer_vocab_size
from specdec.edge.telemetry import ReplicaMetrics
from tests.draft_service.jobs import GREEDY, draft_one, ids, job, random_ids, tokens


@pytest.fixture
def drafter() -> NgramDrafter:
    return NgramDrafter(DraftModel())


@pytest.mark.parametrize("kind", [DraftKind.CHOSEN, DraftKind.SAMPLED])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_the_chain_is_cores_proposal_and_chosen_whatever_was_asked(
    drafter: NgramDrafter, kind: DraftKind, params: SamplingParams
) -> None:
    context = [5, 6, 7, 8, 9, 5, 6]
    draft = draft_one(drafter, job(context, 3, params, kind=kind, support=8))
    assert tokens(draft) == ngram.propose(ids(context), 3).tolist() == [7, 8, 9]
    assert draft.kind is DraftKind.CHOSEN and not draft.coupled and draft.drafter == "ngram"


@pytest.mark.scenario("B39")
@pytest.mark.parametrize("k", [1, 2, 3])
def test_never_more_than_was_asked_for(drafter: NgramDrafter, k: int) -> None:
    """A lookup that copies to the end of its match exceeds what the answer may still hold."""
    assert len(tokens(draft_one(drafter, job([5, 6, 7, 8, 9, 7, 8], k)))) <= k
    for seed in range(50):
        assert len(tokens(draft_one(drafter, job(random_ids(seed, 60, vocab=3), k)))) <= k


@pytest.mark.scenario("B42")
@pytest.mark.parametrize("end_ids", [(), (9,), (1000,)])
def test_a_match_needs_no_end_id(drafter: NgramDrafter, end_ids: tuple[int, ...]) -> None:
    """A lookup that takes an EOS id for granted breaks at its first match where there is none."""
    params = replace(GREEDY, end_ids=end_ids)
    draft = draft_one(drafter, job([5, 6, 7, 8, 9, 10, 11, 7, 8], 3, params))
    assert tokens(draft) == ([9] if end_ids == (9,) else [9, 10, 11])


def test_nothing_to_copy_is_an_empty_draft(drafter: NgramDrafter) -> None:
    for context in ([], [1], [1, 2, 3, 4]):
        assert tokens(draft_one(drafter, job(context, 4))) == []


def test_the_score_rises_with_the_length_of_the_match_and_of_the_draft(drafter: NgramDrafter) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    scores = [draft_one(drafter, job([*text, *text[8 - n : 8]], 4)).score for n in (1, 2, 4, 8)]
    assert scores == pytest.approx([0, 8 / 7, 16 / 9, 32 / 13])
    assert draft_one(drafter, job([*text, 1, 2], 1)).score == 0.5
    ending = replace(GREEDY, end_ids=(3,))
    assert draft_one(drafter, job([*text, 1, 2], 4, ending)).score == 0.5, "one token is left to score"


def test_a_model_folder_gives_the_vocabulary_and_nothing_else(tmp_path: Path, metrics: ReplicaMetrics) -> None:
    text = '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 6}, "merges": []}}'
    (tmp_path / "tokenizer.json").write_text(text)
    model = build(DraftConfig(model=str(tmp_path)), metrics, None).model
    assert model == DraftModel(vocab_size=tokenizer_vocab_size(text), tokenizer_hash=tokenizer_hash(text))
    assert model.vocab_size == 7 and model.tokenizer_hash
    assert build(DraftConfig(), metrics, None).model == DraftModel()


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, metrics: ReplicaMetrics) -> None:
    with pytest.raises(ConfigError, match=r"model = .*tokenizer\.json"):
        build(DraftConfig(model=str(tmp_path)), metrics, None)


def test_an_ngram_drafter_never_imports_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import draft_service.__main__ as m\n"
        "from specdec.edge.telemetry import ReplicaMetrics, Telemetry\n"
        "metrics = ReplicaMetrics(Telemetry.start('t', env={}))\n"
        "print(list(m.load_drafters(m.DraftConfig(), metrics)))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout == "['ngram']\n"


def test_long_contexts_stay_cheap(drafter: NgramDrafter) -> None:
    """The search window bounds the work, whatever the context's length."""
    context = np.random.default_rng(0).integers(0, 50_000, 200_000)
    assert len(tokens(draft_one(drafter, job([*context.tolist(), 1, 2, 3, 1, 2], 4)))) == 4
