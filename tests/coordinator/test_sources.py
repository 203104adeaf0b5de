"""Several draft sources in one session: the better one is used, another takes over when it fails, a named one is the
only one, and what comes out is the target's own whoever drafted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specdec.core.sampling import SamplingParams
from tests.coordinator.chi_square import SUSPICIOUS, p_value, transition_counts
from tests.fakes.replicas import ScriptedDrafter
from tests.fakes.stack import Answer, scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, MARKOV_ROWS, counter, letters_folder
from tests.reference import reference_tokens

SIZE = 1000
COUNTER = counter(SIZE)


def oracle(context: Sequence[int], k: int) -> list[int]:
    return [(context[-1] + 1 + i) % SIZE for i in range(k)]


def liar(context: Sequence[int], k: int) -> list[int]:
    return [(i + 1) % SIZE for i in oracle(context, k)]


def named(folder: Path, name: str, propose: Any = None, table: Any = COUNTER) -> ScriptedDrafter:
    return scripted_drafter(table, folder, propose=propose, replica_id=name, info_overrides={"drafters": (name,)})


def used(answer: Answer) -> dict[str, int]:
    return dict(answer.stats.cycles_per_drafter)


async def test_the_better_of_two_drafters_is_used(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)
    drafters = [named(folder, "bad", liar), named(folder, "good", oracle)]
    async with stack(folder, [scripted_target(COUNTER, folder)], drafters) as s:
        answer = await s.generate(token_ids=[1], max_tokens=300, temperature=0.0)
    assert answer.ids == oracle([1], 300)
    assert used(answer)["good"] > 3 * used(answer).get("bad", 0)
    assert answer.stats.accepted_tokens > 150
    bad, good = (drafter.streams_opened for drafter in drafters)
    assert bad <= good == 1, "one stream per session and drafter, and none to a drafter that was never worth a trial"
    for drafter, name in zip(drafters, ("bad", "good"), strict=True):
        assert {request.open.drafter for _, request in drafter.requests if request.open} <= {name}


async def test_two_drafters_of_one_replica_have_a_stream_each(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)
    drafter = scripted_drafter(COUNTER, folder, propose=liar, info_overrides={"drafters": ("lm", "eagle")})
    async with stack(folder, [scripted_target(COUNTER, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=120, temperature=0.0)
    assert answer.ids == oracle([1], 120)
    assert drafter.streams_opened == 2
    assert {request.open.drafter for _, request in drafter.requests if request.open} == {"lm", "eagle"}


async def test_when_the_drafter_in_use_dies_another_takes_over(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)
    first, second = named(folder, "first", oracle), named(folder, "second", oracle)
    async with stack(folder, [scripted_target(COUNTER, folder)], [first, second], patience=0.5) as s:
        running = asyncio.create_task(s.generate(token_ids=[1], max_tokens=900, temperature=0.0))
        await until(lambda: len(first.requests) + len(second.requests) > 20)
        dying, other = sorted((first, second), key=lambda d: -len(d.requests))
        await s.kill(dying)
        before = len(other.requests)
        await until(lambda: len(other.requests) > before + 10)
        answer = await running
    assert answer.ids == oracle([1], 900)


@pytest.mark.parametrize("name", ["good", "bad"])
async def test_a_named_drafter_is_the_only_one_that_is_asked(tmp_path: Path, name: str) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)
    drafters = {"bad": named(folder, "bad", liar), "good": named(folder, "good", oracle)}
    async with stack(folder, [scripted_target(COUNTER, folder)], [*drafters.values()]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=100, temperature=0.0, drafter=name)
    assert answer.ids == oracle([1], 100)
    assert set(used(answer)) <= {name, ""}
    assert drafters[name].requests
    assert not any(drafter.requests for other, drafter in drafters.items() if other != name)


async def test_copied_text_goes_to_the_coordinators_own_ngram(tmp_path: Path) -> None:
    """A text of period 40 where the drafter is always wrong: nobody else can know what comes."""
    size = 40
    folder, table = letters_folder(tmp_path / "m", size), counter(size)
    drafter = named(folder, "lm", lambda context, k: [(context[-1] + 2 + i) % size for i in range(k)], table)
    async with stack(folder, [scripted_target(table, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=400, temperature=0.0)
    assert answer.ids == [(2 + i) % size for i in range(400)]
    assert used(answer)["ngram"] > 20
    assert answer.stats.accepted_tokens > 200
    assert not answer.stats.fallbacks, "it is a source, not a stopgap"


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"seed": 77}, {"seed": 5, "temperature": 0.7}])
async def test_greedy_and_seeded_output_is_the_same_whoever_drafts(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    drafters = [
        named(folder, "lm", table=MARKOV_5_DRAFT),
        named(folder, "odd", lambda context, k: [i % 5 for i in range(k)], MARKOV_5),
    ]
    async with stack(folder, [scripted_target(MARKOV_5, folder)], drafters) as s:
        answer = await s.generate(token_ids=[1], max_tokens=150, **fields)
    params = SamplingParams(temperature=fields.get("temperature", 1.0))
    assert answer.ids == reference_tokens(MARKOV_5.logits, [1], params, fields.get("seed", 0), 150)


async def test_sampled_and_deterministic_sources_by_turns_yield_the_targets_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unseeded: a sampled chain, a fixed guess and the own n-gram compete, and all of them are used."""
    monkeypatch.setattr("coordinator.service.secrets.randbits", random.Random(20).getrandbits)
    folder = letters_folder(tmp_path / "m", 5)
    drafters = [
        named(folder, "lm", table=MARKOV_5_DRAFT),
        named(folder, "fixed", lambda context, k: [(context[-1] + 1) % 5] * k, MARKOV_5),
    ]
    async with stack(folder, [scripted_target(MARKOV_5, folder)], drafters) as s:
        wanted = {"token_ids": [1], "max_tokens": 800}
        answers = await asyncio.gather(*(s.generate(**wanted) for _ in range(3)))
    assert p_value(transition_counts([a.ids for a in answers], [1] * 3, 5), MARKOV_ROWS) > SUSPICIOUS
    assert {"lm", "fixed", "ngram"} <= {name for answer in answers for name in used(answer)}
