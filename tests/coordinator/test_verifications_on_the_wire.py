"""Which rule judges what: by the request's name, by its seed, and by the shape of the draft. And that the counts of
acceptance agree with the laws."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from specdec.core.acceptance import Acceptance, Floats, Rule
from specdec.core.draft import Draft
from specdec.core.rules import RULES
from specdec.core.verification import Verification, VerifyForm
from tests.coordinator.chi_square import SUSPICIOUS, p_value, transition_counts
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import (
    MARKOV_5,
    MARKOV_5_DRAFT,
    MARKOV_ROWS,
    PAIR_5,
    PAIR_5_DRAFT,
    Table,
    letters_folder,
)
from tests.reference import reference_y

TREE = (0, 0, 1, 1, 2)
LIKELIEST = [int(np.argmax(row)) for row in MARKOV_ROWS]


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.service.secrets.randbits", random.Random(21).getrandbits)


def record(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Draft, Verification, Acceptance]]:
    """Every judgement made from here on, with the rule's name."""
    seen: list[tuple[str, Draft, Verification, Acceptance]] = []

    def watched(name: str, rule: Rule) -> Rule:
        def judge(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
            acceptance = rule(draft, verification, uniforms)
            seen.append((name, draft, verification, acceptance))
            return acceptance

        return judge

    for name, rule in list(RULES.items()):
        monkeypatch.setitem(RULES, name, watched(name, rule))
    return seen


def always_likeliest(context: list[int], k: int) -> list[int]:
    out = [context[-1]]
    for _ in range(k):
        out.append(LIKELIEST[out[-1]])
    return out[1:]


# Fields of the request, what the drafter draws, the rule that judges.
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "chain", "block"),
    ({}, "tree", "traversal"),
    ({}, "chosen", "coupled"),
    ({"num_draft_tokens": 0}, "chain", "coupled"),
    ({"verification": "rejection"}, "chain", "rejection"),
    ({"verification": "rejection"}, "tree", "rejection"),
    ({"verification": "block"}, "chain", "block"),
    ({"verification": "block"}, "tree", "traversal"),
    ({"verification": "traversal"}, "chain", "block"),
    ({"verification": "traversal", "seed": 4}, "tree", "traversal"),
    ({"verification": "block", "seed": 4}, "chain", "block"),
    ({"verification": "rejection", "seed": 4}, "chain", "rejection"),
    ({"verification": "block", "seed": 4}, "chosen", "coupled"),
    ({"verification": "coupled"}, "chain", "coupled"),
    ({"seed": 4}, "chain", "coupled"),
    ({"temperature": 0.0, "verification": "block"}, "chain", "coupled"),
    ({"temperature": 0.0, "verification": "typical"}, "chosen", "coupled"),
    ({"verification": "typical"}, "chosen", "typical"),
    ({"verification": "typical"}, "chain", "typical"),
    ({"verification": "typical", "num_draft_tokens": 0}, "chain", "coupled"),
]


@pytest.mark.parametrize(("fields", "drafts", "rule"), CASES, ids=str)
async def test_the_rule_goes_by_name_seed_and_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], drafts: str, rule: str
) -> None:
    folder, seen = letters_folder(tmp_path / "m", 5), record(monkeypatch)
    kinds: dict[str, dict[str, Any]] = {"tree": {"parents": TREE}, "chosen": {"propose": always_likeliest}, "chain": {}}
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, **kinds[drafts])
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(**{"token_ids": [1], "max_tokens": 60, "num_draft_tokens": 5, **fields})
        lossy = s.metric("specdec_lossy_turns_total")
        served = (await s.client.info()).verifications
    whole = [(name, draft) for name, draft, _, _ in seen if draft.tree.num_draft_tokens == 5]
    assert {name for name, _ in whole} == ({rule} if fields.get("num_draft_tokens") != 0 else set())
    assert all(draft.tree.is_chain == (drafts != "tree") for _, draft in whole)
    assert {name for name, draft, _, _ in seen if not draft.tree.num_draft_tokens} <= {"coupled"}
    typical = fields.get("verification") == "typical" and "temperature" not in fields
    assert answer.stats.lossy == typical
    assert lossy == float(typical)
    named = {"typical"} if typical else {"coupled"} if "temperature" in fields else {fields.get("verification")}
    if None in named:
        named = {"coupled" if "seed" in fields else "block"}
    assert answer.started.verification in named
    assert set(served) == set(RULES)


@pytest.mark.parametrize("verification", ["rejection", "block", "traversal", "coupled", ""])
async def test_every_exact_rule_yields_the_targets_law_on_trees_and_chains_in_turn(
    tmp_path: Path, verification: str
) -> None:
    """One drafter that draws a tree for five tokens, and a chain for the one that is left at the end of a turn."""
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, parents=TREE)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        wanted = {"verification": verification} if verification else {}
        answers = [await s.generate(token_ids=[i], max_tokens=200, num_draft_tokens=5, **wanted) for i in (0, 1, 2, 3)]
    counts = transition_counts([a.ids for a in answers], range(4), 5)
    assert p_value(counts, MARKOV_ROWS) > SUSPICIOUS
    assert not any(a.stats.fallbacks for a in answers)


# Typical acceptance.


async def test_typical_output_is_what_section_7_says_and_not_the_targets_law(tmp_path: Path) -> None:
    """PAIR-5 and a drafter that always proposes 3, then 4: .10 is typical and .05 is not, so every cycle emits 3 and
    the target's own draw behind it, which is the seed's."""
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(PAIR_5_DRAFT, folder, propose=lambda context, k: [3, 4][:k])
    async with stack(folder, [scripted_target(PAIR_5, folder)], [drafter]) as s:
        answer = await s.generate(
            token_ids=[1], max_tokens=60, num_draft_tokens=2, verification="typical", seed=8, drafter="lm"
        )
    law = np.array([0.50, 0.20, 0.15, 0.10, 0.05])
    threshold = min(0.09, 0.3 * np.exp(float((law * np.log(law)).sum())))
    assert law[4] < threshold < law[3]
    expected = [3 if i % 2 == 0 else reference_y(law, 8, 1 + i) for i in range(60)]
    assert answer.ids[:58] == expected[:58]
    assert answer.stats.lossy
    assert answer.stats.exact_alpha_count == 0


async def test_typical_acceptance_is_chosen_by_no_default(tmp_path: Path) -> None:
    """Unset, with any other parameter, it stays exact."""
    folder = letters_folder(tmp_path / "m", 5)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        for fields in ({}, {"seed": 1}, {"temperature": 0.5}, {"drafter": "lm"}, {"logprobs": 1}, {"top_k": 2}):
            answer = await s.generate(token_ids=[1], max_tokens=12, num_draft_tokens=3, **fields)
            assert not answer.stats.lossy
        assert s.metric("specdec_lossy_turns_total") == 0


async def test_typical_at_temperature_0_is_greedy(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, propose=always_likeliest)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        asked: dict[str, Any] = {"token_ids": [1], "max_tokens": 40, "temperature": 0.0}
        plain = await s.generate(**asked, num_draft_tokens=0)
        typical = await s.generate(**asked, num_draft_tokens=4, verification="typical")
    assert typical.ids == plain.ids
    assert typical.stats.accepted_tokens > 20 and not typical.stats.lossy


async def test_drafters_are_asked_for_chosen_drafts_under_typical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = letters_folder(tmp_path / "m", 5), record(monkeypatch)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=40, num_draft_tokens=3, verification="typical", logprobs=2)
    forms = {verification.form for _, draft, verification, _ in seen if draft.tree.num_draft_tokens}
    assert forms == {VerifyForm.TYPICAL}
    assert all(not draft.laws for _, draft, _, _ in seen)
    assert all(token.HasField("logprob") for chunk in answer.chunks for token in chunk.tokens)


# Counts against laws.

Group = tuple[str, int]


async def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafts: Table, **drafter: Any) -> dict[Group, Any]:
    """By kind of draft and exact alpha of the first child: cycles, those in which it was accepted, variance."""
    folder, seen = letters_folder(tmp_path / "m", 5), record(monkeypatch)
    served = scripted_drafter(drafts, folder, **drafter)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [served]) as s:
        for i in range(5):
            await s.generate(token_ids=[i], max_tokens=500, num_draft_tokens=2, verification="rejection")
    groups: dict[Group, Any] = defaultdict(lambda: np.zeros(3))
    for name, draft, _, acceptance in seen:
        if draft.tree.num_draft_tokens:
            alpha = acceptance.alphas[0]
            groups[name, round(1000 * alpha)] += (bool(acceptance.nodes), alpha, alpha * (1 - alpha))
    return groups


def joint_p(groups: dict[Group, Any]) -> float:
    """Chi-square of the counts of every group together."""
    statistic = sum((hits - expected) ** 2 / variance for hits, expected, variance in groups.values())
    return float(stats.chi2.sf(statistic, len(groups)))


def too_willing(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """Judges by numbers half as large as they should be."""
    numbers = np.append(uniforms[:1], 0.5 * uniforms[1:])
    return RIGHT(draft, verification, numbers)


RIGHT = RULES["rejection"]


@pytest.mark.scenario("B11")
async def test_first_children_are_accepted_as_often_as_their_exact_alpha_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B11: token rule, temperature 1, unseeded, sampled and deterministic drafts, by context: one joint chi-square.
    A rule whose numbers are too small is told apart."""
    sampled = await counted(tmp_path / "a", monkeypatch, MARKOV_5_DRAFT)
    chosen = await counted(tmp_path / "b", monkeypatch, MARKOV_5_DRAFT, propose=always_likeliest)
    assert {name for name, _ in sampled} == {"rejection"} and {name for name, _ in chosen} == {"coupled"}
    assert Counter(name for name, _ in sampled | chosen)["rejection"] >= 4
    assert joint_p(sampled | chosen) > 1e-3
    monkeypatch.setitem(RULES, "rejection", too_willing)
    assert joint_p(await counted(tmp_path / "c", monkeypatch, MARKOV_5_DRAFT)) < SUSPICIOUS


async def test_block_accepts_more_than_the_token_rule(tmp_path: Path) -> None:
    """Over the same seeds; in expectation never less (tests/core/test_block.py)."""
    folder, lengths = letters_folder(tmp_path / "m", 5), []
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        for verification in ("rejection", "block"):
            stats_of = [
                (await s.generate(token_ids=[i], max_tokens=400, num_draft_tokens=4, verification=verification)).stats
                for i in range(4)
            ]
            lengths.append(sum(x.accepted_tokens for x in stats_of) / sum(x.cycles for x in stats_of))
            assert 0 < sum(x.exact_alpha_sum for x in stats_of) / sum(x.exact_alpha_count for x in stats_of) < 1
    assert lengths[1] > lengths[0]
