"""Sampling parameters and seeds reach both replicas and decide alike, whatever the drafter does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.tokenizer import TextCodec
from specdec.core.sampling import SamplingParams
from tests.coordinator.chi_square import SUSPICIOUS, p_value, token_p_value, transition_counts
from tests.fakes.replicas import ScriptedDrafter
from tests.fakes.scripted import Request, Stream
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import (
    MARKOV_5,
    MARKOV_5_DRAFT,
    PAIR_5_DRAFT,
    PAIR_5_P,
    Logits,
    Table,
    constant,
    letters_folder,
)
from tests.reference import Law, reference_law, reference_tokens


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.service.secrets.randbits", random.Random(13).getrandbits)


def rows(table: Table, params: SamplingParams) -> list[list[float]]:
    """The exact law after each last token."""
    return [reference_law(table.logits([i]), [i], 1, params).tolist() for i in range(table.vocab_size)]


@dataclass(eq=False)
class Unfiltered(ScriptedDrafter):
    """Knows nothing of the request's parameters: an honest law, but not the one that was asked for."""

    def _law(self, stream: Stream, path: Sequence[int]) -> Law:
        return reference_law(self.table.logits([*stream.tokens, *path]), [0], 1, SamplingParams())


FILTERS: list[dict[str, Any]] = [
    {"top_k": 2},
    {"top_p": 0.7},
    {"temperature": 0.5},
    {"logit_bias": {3: -100.0, 4: 1.0}, "min_p": 0.3},
]


@pytest.mark.scenario("B10", "B46")
@pytest.mark.parametrize("fields", FILTERS, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("kind", [ScriptedDrafter, Unfiltered])
async def test_filters_hold_for_verified_tokens_too(
    tmp_path: Path, fields: dict[str, Any], kind: type[ScriptedDrafter]
) -> None:
    """B10, B46: support and law are the filtered target's at every row, also under a drafter that filters nothing."""
    params = SamplingParams(**{**fields, "logit_bias": tuple(fields.get("logit_bias", {}).items())})
    folder = letters_folder(tmp_path / "m", 5)
    drafter = kind(MARKOV_5_DRAFT, TextCodec.load(str(folder)).tokenizer_hash, "draft")
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=400, num_draft_tokens=2, **fields)
    assert answer.stats.accepted_tokens > 50
    counts = transition_counts([answer.ids], [1], 5)
    assert p_value(counts, rows(MARKOV_5, params)) > SUSPICIOUS
    assert p_value(counts, rows(MARKOV_5, SamplingParams())) < SUSPICIOUS, "the filters changed nothing"


@pytest.mark.scenario("B48")
async def test_a_seed_gives_the_same_tokens_alone_in_company_and_after_a_restart(tmp_path: Path) -> None:
    """B48: alone, among eight, from another coordinator with another k; another seed gives others."""
    folder = letters_folder(tmp_path / "m", 5)
    fields = {"token_ids": [1], "max_tokens": 10, "temperature": 2.0}
    expected = reference_tokens(MARKOV_5.logits, [1], SamplingParams(temperature=2.0), 42, 10)
    found = []
    for k in (3, 1):
        async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
            found += [await s.generate(**fields, seed=42, num_draft_tokens=k) for _ in range(2)]
            company = [s.generate(**fields, seed=seed, num_draft_tokens=k) for seed in (42, 1, 2, 3, 4, 5, 6, 7)]
            first, *others = await asyncio.gather(*company)
            found.append(first)
            assert all(other.ids != expected for other in others)
    assert [answer.ids for answer in found] == [expected] * 6


@pytest.mark.scenario("B49")
async def test_seeded_and_unseeded_requests_side_by_side(tmp_path: Path) -> None:
    """B49: a banned token never comes, and seeded requests are as they are alone."""
    folder = letters_folder(tmp_path / "m", 5)
    params = SamplingParams(logit_bias=((0, -np.inf),))
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        requests = [
            s.generate(token_ids=[1], max_tokens=60, seed=seed, num_draft_tokens=3, logit_bias={0: -np.inf})
            for seed in (1, None, 7, None)
        ]
        answers = await asyncio.gather(*requests)
    assert all(0 not in answer.ids for answer in answers)
    for seed, answer in zip((1, None, 7, None), answers, strict=True):
        assert answer.started.verification == ("block" if seed is None else "coupled")
        if seed is not None:
            assert answer.ids == reference_tokens(MARKOV_5.logits, [1], params, seed, 60)


@pytest.mark.scenario("B50")
@pytest.mark.parametrize(("verification", "k"), [("coupled", 0), ("coupled", 3), ("rejection", 3)])
async def test_every_token_of_a_seeded_request_has_its_own_noise(tmp_path: Path, verification: str, k: int) -> None:
    """B50: tokens and consecutive pairs of one long request under a uniform law."""
    folder = letters_folder(tmp_path / "m", 5)
    uniform = constant([0.2] * 5)
    async with stack(folder, [scripted_target(uniform, folder)], [scripted_drafter(PAIR_5_DRAFT, folder)]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=700, seed=1, num_draft_tokens=k, verification=verification)
    assert token_p_value(answer.ids, [0.2] * 5) > SUSPICIOUS
    assert p_value(transition_counts([answer.ids], [1], 5), [[0.2] * 5] * 5) > SUSPICIOUS


@pytest.mark.scenario("B50")
async def test_noise_that_repeats_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B50's fault: a generator made anew from the seed at each step."""
    monkeypatch.setattr("coordinator.generation.uniforms", lambda seed, base, purpose, n: np.full(n, 0.3))
    folder = letters_folder(tmp_path / "m", 5)
    uniform = constant([0.2] * 5)
    async with stack(folder, [scripted_target(uniform, folder)], [scripted_drafter(PAIR_5_DRAFT, folder)]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=600, seed=1, num_draft_tokens=3, verification="rejection")
    assert token_p_value(answer.ids, [0.2] * 5) < SUSPICIOUS


def by_first_token(p: Sequence[float]) -> Table:
    """The law p where the prompt begins with token 0, its mirror image elsewhere."""
    there: Logits = np.log(np.array(p))
    mirrored: Logits = there[::-1]

    def logits(context: Sequence[int]) -> Logits:
        return there if context[0] == 0 else mirrored

    return Table(len(p), logits, "by-first-token")


@pytest.mark.scenario("B06")
async def test_neighbours_come_and_go_and_drafts_stay_with_their_requests(tmp_path: Path) -> None:
    """B06: A has q and B its mirror image; a third request comes and is cancelled between its drafts and verifies."""
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(by_first_token((0.20, 0.40, 0.10, 0.05, 0.25)), folder)
    target = scripted_target(by_first_token(PAIR_5_P), folder)

    async def disturb(request: Request, reply: Any) -> Any:
        for task in list(passers_by):
            if request.cycle % 7 == 0:
                task.cancel()
        return reply

    drafter.script = disturb
    passers_by: set[asyncio.Task[Any]] = set()
    async with stack(folder, [target], [drafter]) as s, asyncio.TaskGroup() as tasks:

        async def passer_by() -> None:
            while not done.is_set():
                task = asyncio.create_task(s.generate(token_ids=[2], max_tokens=300, num_draft_tokens=3))
                passers_by.add(task)
                await asyncio.wait([task])
                passers_by.discard(task)

        done = asyncio.Event()
        tasks.create_task(passer_by())
        requests = (s.generate(token_ids=[i], max_tokens=500, num_draft_tokens=2) for i in (0, 1))
        a, b = await asyncio.gather(*requests)
        done.set()
        for task in list(passers_by):
            task.cancel()
        assert s.metric("specdec_requests_total", outcome="cancelled") > 3
    assert token_p_value(a.ids, PAIR_5_P) > SUSPICIOUS
    assert token_p_value(b.ids, PAIR_5_P[::-1]) > SUSPICIOUS
    assert not a.stats.fallbacks
    assert not b.stats.fallbacks
