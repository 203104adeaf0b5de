"""Speculative = plain = `transformers`, token for token, through three real processes (float32)."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from specdec.edge.client import Client
from specdec.edge.draft_entries import DraftEntries
from specdec.lm.loading import load_model
from tests.draft_service.tiny_heads import ACCURACIES, make_oracle, write_head
from tests.end_to_end.clusters import PROMPT, VOCAB, all_generated, cluster, tiny_folder, transformers_greedy
from tests.fakes.tables import letters_folder

TOKENS = 256
DRAFTERS = ("lm", "ngram")
KS = (1, 4, 8)
DEFAULT_FLOOR = 0.9  # of draft tokens accepted, from the target itself with no parameter set
LOAD = {"late", "no_drafter"}  # the fallbacks that a busy machine brings about by itself


@pytest.mark.scenario("B18")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
async def test_greedy_and_seeded_output_depend_on_no_draft(tmp_path: Path, family: str) -> None:
    """Every drafter and k, all in shared batches, gives the output of plain decoding; greedy that of transformers."""
    config = {"sliding_window": 48} if family == "mistral" else {}
    folder = tiny_folder(tmp_path / "model", family, **config)
    expected = transformers_greedy(folder, PROMPT, TOKENS)
    common = {"token_ids": PROMPT, "max_tokens": TOKENS}
    plain = [
        {**common, "temperature": 0.0, "num_draft_tokens": 0},
        {**common, "temperature": 1.0, "seed": 7, "num_draft_tokens": 0},
    ]
    drafted = [
        {**request, "num_draft_tokens": k, "drafter": drafter} for request, drafter, k in product(plain, DRAFTERS, KS)
    ]
    async with cluster(folder, tmp_path / "logs") as running, Client(running.address) as client:
        (greedy, _), (seeded, _) = await all_generated(client, plain)
        answers = await all_generated(client, drafted)
    assert greedy == expected
    assert seeded != greedy, "the seeded request was not sampled"
    for request, (ids, stats) in zip(drafted, answers, strict=True):
        assert ids == (greedy if request["temperature"] == 0.0 else seeded), request
        assert not set(stats.fallbacks) - LOAD, request
    lm_accepted = sum(s.accepted_tokens for r, (_, s) in zip(drafted, answers, strict=True) if r["drafter"] == "lm")
    assert lm_accepted > 0, "no draft was ever accepted: the identity was not put to the test"


@pytest.mark.scenario("B19", "B128")
@pytest.mark.timeout(180)
async def test_a_drafter_identical_to_the_target_is_always_right(tmp_path: Path) -> None:
    """100 % acceptance in the y-form, for every k; exact alpha at least .999 in the p/q form when top_k fits into M.
    B128: with the shipped defaults nothing cuts what the drafter gets right either; at temperature 1 a support that
    holds part of the law costs less than a tenth. What a cycle costs by k is a row of `benchmarks.capacity`."""
    folder = tiny_folder(tmp_path / "model")
    common = {"token_ids": PROMPT, "max_tokens": 96, "drafter": "lm"}
    y_form: list[dict[str, Any]] = [
        {**common, **sampling, "num_draft_tokens": k}
        for sampling, k in product(({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}), (1, 2, 3, 5, 8))
    ]
    pq_form = [{**common, "temperature": 1.0, "top_k": 20, "num_draft_tokens": k} for k in (1, 4)]
    async with cluster(folder, tmp_path / "logs", draft_layers=None) as running, Client(running.address) as client:
        for request, (_, stats) in zip(y_form, await all_generated(client, y_form), strict=True):
            assert stats.accepted_tokens == stats.draft_tokens > 0, request
            assert stats.cycles == -(-96 // (request["num_draft_tokens"] + 1)), request
        for request, (_, stats) in zip(pq_form, await all_generated(client, pq_form), strict=True):
            assert stats.exact_alpha_sum / stats.exact_alpha_count >= 0.999, request
            assert not set(stats.fallbacks) - LOAD, request
        ((_, stats),) = await all_generated(client, [common])
        assert stats.accepted_tokens >= DEFAULT_FLOOR * stats.draft_tokens > 0


@pytest.mark.scenario("B18")
@pytest.mark.timeout(180)
async def test_output_depends_on_no_head(tmp_path: Path) -> None:
    """Untrained heads, which are hardly ever right, on the target's hidden states: chains, static and dynamic trees."""
    folder = tiny_folder(tmp_path / "model")
    loaded = load_model(str(folder), dtype="float32", device="cpu")
    heads = {
        "medusa": write_head(tmp_path / "medusa", "medusa", folder, loaded, accuracies=ACCURACIES),
        "eagle": write_head(tmp_path / "eagle", "eagle", folder, loaded, accuracies=ACCURACIES, tree=True),
        "eagle2": write_head(tmp_path / "eagle2", "eagle", folder, loaded, feature_layers=[0, 2, 4]),
    }
    draft = DraftEntries(tuple(f"{name}:{head}" for name, head in heads.items()))
    common = {"token_ids": PROMPT, "max_tokens": 96}
    plain = [
        {**common, "temperature": 0.0, "num_draft_tokens": 0},
        {**common, "temperature": 1.0, "seed": 7, "num_draft_tokens": 0},
    ]
    drafted = [
        {**request, "num_draft_tokens": k, "drafter": name} for request, name, k in product(plain, heads, (1, 9))
    ]
    async with cluster(folder, tmp_path / "logs", draft=draft) as running, Client(running.address) as client:
        (greedy, _), (seeded, _) = await all_generated(client, plain)
        answers = await all_generated(client, drafted)
    assert greedy == transformers_greedy(folder, PROMPT, 96)
    for request, (ids, stats) in zip(drafted, answers, strict=True):
        assert ids == (greedy if request["temperature"] == 0.0 else seeded), request
        assert not set(stats.fallbacks) - LOAD, request
        assert stats.draft_tokens > 48, request
    assert sum(stats.accepted_tokens for _, stats in answers) > 0


@pytest.mark.scenario("B19")
@pytest.mark.timeout(180)
async def test_a_head_that_is_the_target_is_always_right(tmp_path: Path) -> None:
    """Also across cycles, accepted drafts and bonus tokens: its features come back from the target each time."""
    folder, head = make_oracle(letters_folder(tmp_path / "model", VOCAB), tmp_path / "head", VOCAB)
    common = {"token_ids": PROMPT, "max_tokens": 96, "drafter": "eagle"}
    requests: list[dict[str, Any]] = [
        {**common, **sampling, "num_draft_tokens": k}
        for sampling, k in product(({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}), (1, 5))
    ]
    draft = DraftEntries((f"eagle:{head}",))
    async with cluster(folder, tmp_path / "logs", draft=draft) as running, Client(running.address) as client:
        for request, (_, stats) in zip(requests, await all_generated(client, requests), strict=True):
            assert stats.accepted_tokens == stats.draft_tokens > 40, request
