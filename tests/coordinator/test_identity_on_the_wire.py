"""Greedy and seeded output is plain decoding's, token for token, whatever is drafted; penalties advance in a block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec.core.acceptance import Acceptance, Floats
from specdec.core.draft import Draft
from specdec.core.rules import RULES
from specdec.core.sampling import SamplingParams
from specdec.core.verification import Verification
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import PAIR_5_DRAFT, Table, constant, counter, letters_folder
from tests.reference import Law, reference_law, reference_tokens

SIZE = 40
LADDER = Table(8, lambda context: np.array([5.0, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5]), "ladder", memory=0)


def liar(context: Sequence[int], k: int) -> list[int]:
    """Always two too far."""
    return [(context[-1] + 2 + i) % SIZE for i in range(k)]


@pytest.mark.scenario("B13")
@pytest.mark.parametrize("k", [1, 2, 4])
async def test_a_drafter_that_is_always_wrong_has_nothing_accepted(tmp_path: Path, k: int) -> None:
    """B13: the first draft token too is compared with the target's own choice."""
    folder = letters_folder(tmp_path / "m", SIZE)
    table = counter(SIZE)
    drafter = scripted_drafter(table, folder, propose=liar)
    async with stack(folder, [scripted_target(table, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[3], max_tokens=32, temperature=0.0, num_draft_tokens=k)
        ngram = await s.generate(
            token_ids=[1, 1, 1], max_tokens=32, temperature=0.0, num_draft_tokens=k, drafter="ngram"
        )
    assert answer.ids == reference_tokens(table.logits, [3], SamplingParams(temperature=0.0), 0, 32)
    assert answer.stats.accepted_tokens == 0
    assert answer.stats.cycles == 32
    assert ngram.ids == list(range(2, 34))
    assert ngram.stats.accepted_tokens == 0
    assert ngram.stats.draft_tokens > 0


@pytest.mark.scenario("B13")
async def test_to_keep_a_first_draft_token_unseen_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13's fault put back."""

    def keep_the_first(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
        nodes = (1,) if draft.tree.num_draft_tokens else ()
        return Acceptance(nodes, int(verification.drawn[len(nodes)]), True)

    monkeypatch.setitem(RULES, "coupled", keep_the_first)
    folder = letters_folder(tmp_path / "m", SIZE)
    drafter = scripted_drafter(counter(SIZE), folder, propose=liar)
    async with stack(folder, [scripted_target(counter(SIZE), folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[3], max_tokens=32, temperature=0.0, num_draft_tokens=2)
    assert answer.ids != [(4 + i) % SIZE for i in range(32)]


@pytest.mark.scenario("B14")
@pytest.mark.parametrize("temperature", [0.0, 9.9e-6])
async def test_at_temperature_zero_a_likely_draft_is_no_match(tmp_path: Path, temperature: float) -> None:
    """B14: p(0) = .30 exceeds q(0) = .20, yet the target picks 1: below the threshold laws are point masses."""
    folder = letters_folder(tmp_path / "m", 3)
    target = scripted_target(constant((0.30, 0.50, 0.20)), folder)
    drafter = scripted_drafter(constant((0.20, 0.19, 0.61)), folder, propose=lambda context, k: [0] * k)
    async with stack(folder, [target], [drafter]) as s:
        answer = await s.generate(token_ids=[0], max_tokens=10, temperature=temperature, num_draft_tokens=2)
    assert answer.ids == [1] * 10
    assert answer.stats.accepted_tokens == 0


PENALTIES: list[dict[str, Any]] = [
    {"frequency_penalty": 1.0},
    {"presence_penalty": 0.7},
    {"repetition_penalty": 1.6},
    {"frequency_penalty": 0.4, "presence_penalty": -0.5, "repetition_penalty": 1.1},
]


@pytest.mark.scenario("B43", "B44", "B47")
@pytest.mark.parametrize("fields", PENALTIES, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_penalties_count_every_token_of_a_block(
    tmp_path: Path, fields: dict[str, Any], temperature: float
) -> None:
    """B43, B44, B47: with drafts as without, over 40 tokens; a drafter that knows the penalties is always right."""
    folder = letters_folder(tmp_path / "m", 8)
    params = SamplingParams(temperature=temperature, **fields)
    expected = reference_tokens(LADDER.logits, [2, 2, 1], params, 9, 40)
    request = {"token_ids": [2, 2, 1], "max_tokens": 40, "temperature": temperature, "seed": 9, **fields}
    async with stack(folder, [scripted_target(LADDER, folder)], [scripted_drafter(LADDER, folder)]) as s:
        fast = await s.generate(**request, num_draft_tokens=4)
        plain = await s.generate(**request, num_draft_tokens=0)
    assert fast.ids == plain.ids == expected
    assert fast.stats.accepted_tokens == fast.stats.draft_tokens, "the same laws and noise, yet rejected"
    assert expected != reference_tokens(LADDER.logits, [2, 2, 1], SamplingParams(temperature=temperature), 9, 40)


@pytest.mark.scenario("B44")
async def test_penalties_that_forget_the_path_do_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a verifier that counts the context, but not the draft tokens on the way to a node."""
    folder = letters_folder(tmp_path / "m", 8)
    target = scripted_target(LADDER, folder)

    def forgetful(stream: Any, path: Sequence[int]) -> Law:
        opening = stream.opening
        return reference_law(LADDER.logits(stream.tokens), stream.tokens, opening.turn_start, opening.params)

    monkeypatch.setattr(target, "_law", forgetful)
    async with stack(folder, [target], [scripted_drafter(LADDER, folder)]) as s:
        answer = await s.generate(
            token_ids=[2, 2, 1], max_tokens=40, temperature=0.0, frequency_penalty=1.0, num_draft_tokens=4
        )
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    assert answer.ids != reference_tokens(LADDER.logits, [2, 2, 1], params, 0, 40)


@pytest.mark.scenario("B51")
@pytest.mark.parametrize("drafter", ["none", "coupled", "chosen", "planner"])
async def test_a_seeded_output_depends_on_no_drafter(tmp_path: Path, drafter: str) -> None:
    """B51: a stronger contract than its law: identical whatever drafts come, for a target of another law."""
    folder = letters_folder(tmp_path / "m", 5)
    table = constant((0.3, 0.25, 0.2, 0.15, 0.1))
    expected = reference_tokens(table.logits, [1], SamplingParams(), 77, 60)
    extra: dict[str, Any] = {"chosen": {"propose": lambda context, k: [i % 5 for i in range(k)]}}.get(drafter, {})
    drafters = [] if drafter == "none" else [scripted_drafter(PAIR_5_DRAFT, folder, **extra)]
    k = None if drafter == "planner" else 4
    async with stack(folder, [scripted_target(table, folder)], drafters) as s:
        answer = await s.generate(token_ids=[1], max_tokens=60, seed=77, num_draft_tokens=k)
    assert answer.ids == expected
