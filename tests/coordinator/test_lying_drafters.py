"""A drafter that samples from one law and reports another, or sends what is no law at all: it is seen, counted and set
aside, and never bends what the client gets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator import drafting, replica
from specdec.core.draft import NO_DRAFT, Draft, DraftKind, DraftLaw
from specdec.core.tree import DraftTree
from tests.coordinator.chi_square import SUSPICIOUS, token_p_value
from tests.fakes.scripted import Request
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import PAIR_5, PAIR_5_DRAFT, PAIR_5_P, PAIR_5_Q, constant, letters_folder

TOKENS = 900


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.service.secrets.randbits", random.Random(31).getrandbits)


def raw(law: DraftLaw) -> DraftLaw:
    """The whole of q, whatever the token was drawn from."""
    ids = np.array([1, 0, 4, 2, 3], dtype=np.uint32)
    return DraftLaw(ids, np.array(PAIR_5_Q, dtype=np.float16)[ids])


async def lied_to(tmp_path: Path) -> tuple[list[int], Any, float]:
    """Tokens, draft statistics, and how often the drafter was set aside: it draws from the top 2, reports all of q."""
    folder = letters_folder(tmp_path / "m", 5)
    liar = scripted_drafter(PAIR_5_DRAFT, folder, support=2, reported=raw)
    async with stack(folder, [scripted_target(PAIR_5, folder)], [liar]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=TOKENS, num_draft_tokens=2)
        return answer.ids, answer.stats, s.metric("specdec_quarantines_total", role="draft", reason="BAD_DRAFT")


@pytest.mark.scenario("B01")
async def test_a_draft_that_was_not_drawn_from_its_law_is_seen_and_its_drafter_set_aside(tmp_path: Path) -> None:
    """B01, variant B: sampled from filtered, reported unfiltered. The keyed draw, made again, tells."""
    ids, stats, quarantines = await lied_to(tmp_path)
    assert stats.fallbacks["bad_draft"] >= 1
    assert quarantines == stats.fallbacks["bad_draft"]
    assert stats.fallbacks["no_drafter"] > 100, "set aside means not asked"
    assert token_p_value(ids, PAIR_5_P) > SUSPICIOUS


@pytest.mark.scenario("B01")
async def test_even_a_liar_that_is_asked_again_at_once_bends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B01 at its worst: most drafts are lies. Each is put right, not dropped (algorithms.md, section 9)."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.0)
    ids, stats, _ = await lied_to(tmp_path)
    assert stats.fallbacks["bad_draft"] > 150
    assert token_p_value(ids, PAIR_5_P) > SUSPICIOUS


def believe(draft: Draft, seed: int, base: int) -> None:
    return None


def discard(draft: Draft, seed: int, base: int) -> Draft:
    return NO_DRAFT


@pytest.mark.parametrize(("name", "wrong"), [("check_draws", believe), ("redrawn", discard)])
async def test_to_believe_a_liar_or_to_drop_only_its_lies_is_biased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]
) -> None:
    """The negative controls of the test above."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(drafting, name, wrong)
    ids, _, _ = await lied_to(tmp_path)
    assert token_p_value(ids, PAIR_5_P) < SUSPICIOUS


@pytest.mark.scenario("B01")
async def test_a_filtered_law_that_is_reported_as_such_is_believed(tmp_path: Path) -> None:
    """B01, variant A: any law is exact if the token was drawn from it."""
    folder = letters_folder(tmp_path / "m", 5)
    honest = scripted_drafter(PAIR_5_DRAFT, folder, support=2)
    async with stack(folder, [scripted_target(PAIR_5, folder)], [honest]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=TOKENS, num_draft_tokens=2)
    assert not answer.stats.fallbacks
    assert token_p_value(answer.ids, PAIR_5_P) > SUSPICIOUS


@pytest.mark.scenario("B09")
async def test_a_law_in_another_precision_than_the_draw_is_a_lie(tmp_path: Path) -> None:
    """B09: logits 64.0 and 64.24 are equal in bf16, .44 and .56 in float32; 6 % of the draws differ."""
    exact = np.exp([0.0, 0.24]) / np.exp([0.0, 0.24]).sum()
    folder = letters_folder(tmp_path / "m", 2)

    def in_float32(law: DraftLaw) -> DraftLaw:
        return DraftLaw(law.ids, exact[law.ids].astype(np.float16))

    drafter = scripted_drafter(constant((0.5, 0.5)), folder, reported=in_float32)
    async with stack(folder, [scripted_target(constant((0.5, 0.5)), folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=TOKENS, num_draft_tokens=2)
    assert answer.stats.fallbacks["bad_draft"] >= 1
    assert token_p_value(answer.ids, (0.5, 0.5)) > SUSPICIOUS


def without_weights(draft: Draft) -> Draft:
    return replace(draft, laws=tuple(DraftLaw(law.ids, law.weights[:0]) for law in draft.laws))


def with_a_short_law(draft: Draft) -> Draft:
    return replace(draft, laws=(*draft.laws[:-1], DraftLaw(draft.laws[-1].ids, draft.laws[-1].weights[:-1])))


def with_weights(weights: list[float]) -> Callable[[Draft], Draft]:
    def change(draft: Draft) -> Draft:
        w = np.array(weights, dtype=np.float16)
        return replace(draft, laws=tuple(DraftLaw(law.ids, w[: len(law.ids)]) for law in draft.laws))

    return change


def with_an_id_beyond(draft: Draft) -> Draft:
    return replace(draft, tree=DraftTree.chain([5, 5, 5]))


def with_more_than_asked(draft: Draft) -> Draft:
    return Draft(DraftTree.chain([0] * 9), DraftKind.CHOSEN)


SPOILT = {
    "no weights": without_weights,
    "a weight short": with_a_short_law,
    "NaN": with_weights([1, np.nan, 1, 1, 1]),
    "negative": with_weights([1, -1, 1, 1, 1]),
    "no mass": with_weights([0, 0, 0, 0, 0]),
    "garbage ids": with_an_id_beyond,
    "too long": with_more_than_asked,
}


@pytest.mark.scenario("B05", "B135")
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
async def test_a_spoilt_draft_is_dropped_for_that_request_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Draft], Draft]
) -> None:
    """B05, B135: the second of three requests gets a draft without a proper law, once all are under way."""
    folder = letters_folder(tmp_path / "m", 5)
    victims: list[str] = []

    async def script(request: Request, reply: Any) -> Any:
        session = drafter.requests[-1][0]
        if request.cycle >= 3 and len(drafter.streams) == 3 and not victims:
            victims.append(session)
            return replace(reply, result=spoil(reply.result))
        return reply

    drafter = scripted_drafter(PAIR_5_DRAFT, folder, script=script)
    async with stack(folder, [scripted_target(PAIR_5, folder)], [drafter]) as s:
        requests = (s.generate(token_ids=[1], max_tokens=100, num_draft_tokens=3) for _ in range(3))
        answers = {a.started.session_id: a for a in await asyncio.gather(*requests)}
        assert s.metric("specdec_fallbacks_total", cause="bad_draft") == 1
        assert s.metric("specdec_wasted_draft_tokens_total") == 3
    (victim,) = victims
    assert answers.pop(victim).stats.fallbacks["bad_draft"] == 1
    for other in answers.values():
        assert not other.stats.fallbacks
    assert "set aside" in caplog.text
