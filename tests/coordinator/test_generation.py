"""The loop over scripted replicas: real gRPC, laws known exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec.core.sampling import SamplingParams
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, counter, letters_folder
from tests.reference import reference_tokens


async def test_greedy_output_is_the_targets_own_with_and_without_drafts(tmp_path: Path) -> None:
    table = counter(40)
    folder = letters_folder(tmp_path / "m", 40)
    drafter = scripted_drafter(table, folder, propose=lambda context, k: [(context[-1] + 1 + i) % 40 for i in range(k)])
    async with stack(folder, [scripted_target(table, folder)], [drafter]) as s:
        plain = await s.generate(token_ids=[3], max_tokens=30, temperature=0.0, num_draft_tokens=0)
        fast = await s.generate(token_ids=[3], max_tokens=30, temperature=0.0, num_draft_tokens=4)
    assert plain.ids == [(4 + i) % 40 for i in range(30)]
    assert fast.ids == plain.ids
    assert fast.stats.accepted_tokens == fast.stats.draft_tokens
    assert fast.stats.cycles == 6


@pytest.mark.parametrize("k", [0, 1, 3])
async def test_seeded_output_is_plain_decoding_whatever_the_draft(tmp_path: Path, k: int) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    expected = reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 42, 25)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=25, seed=42, num_draft_tokens=k)
    assert answer.ids == expected


async def test_unseeded_sampled_drafts_are_judged_by_the_token_rule(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=200, num_draft_tokens=3)
    assert answer.started.verification == "block"
    assert answer.stats.exact_alpha_count > 0
    assert 0 < answer.stats.accepted_tokens < answer.stats.draft_tokens
    assert not answer.stats.fallbacks
