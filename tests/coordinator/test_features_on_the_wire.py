"""Hidden states of the target reach the drafter that reads them: one row per position, the right one, after acceptances
of every length and across failures of either side; nobody else pays for them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import replica
from specdec.core.features import FEATURE_WINDOW, FeatureRows, VerifiedFeatures
from specdec.edge.messages import DrafterInfo
from tests.fakes.features import SIZE, TARGET_INFO
from tests.fakes.reading_drafter import ReadingDrafter
from tests.fakes.replicas import ScriptedTarget
from tests.fakes.scripted import Request, silent
from tests.fakes.stack import Answer, scripted_target, stack, until
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, Table, counter, letters_folder

V = 50
COUNTER = counter(V)
GREEDY = {"temperature": 0.0, "num_draft_tokens": 4}


class Mixed:
    """Guesses of which 0, 1, 2, ..., k, 0, ... are right, whatever the rest of the world does."""

    def __init__(self) -> None:
        self.rounds = 0

    def __call__(self, context: list[int], k: int) -> list[int]:
        right = self.rounds % (k + 1)
        self.rounds += 1
        return [(context[-1] + 1 + i + (i >= right)) % V for i in range(k)]


def reading_target(table: Table, folder: Path, **fields: Any) -> ScriptedTarget:
    return scripted_target(table, folder, info_overrides=TARGET_INFO, **fields)


def reader(table: Table, folder: Path, **fields: Any) -> ReadingDrafter:
    return ReadingDrafter(table, scripted_target(table, folder).tokenizer_hash, "draft", **fields)


def has_one_row_per_position(drafter: ReadingDrafter) -> bool:
    """Of a window, when its first rows come, and of all positions since. The first message brings none: the target has
    not been asked yet."""
    (_, none), (length, _), *rest = drafter.seen
    start = max(0, length - 1 - FEATURE_WINDOW)
    assert rest and not none
    return not drafter.twice and all(rows == list(range(start, length - 1)) for length, rows in drafter.seen[1:])


@pytest.mark.scenario("B27")
@pytest.mark.parametrize("prompt", [1, 2, FEATURE_WINDOW, FEATURE_WINDOW + 1, FEATURE_WINDOW + 2, 300])
async def test_the_drafter_has_the_state_of_the_last_position_after_every_length_of_acceptance(
    tmp_path: Path, prompt: int
) -> None:
    """B27: the head's guess is right only with the right row, and then as often as it can be."""
    folder = letters_folder(tmp_path / "m", V)
    drafter = reader(COUNTER, folder, propose=Mixed())
    async with stack(folder, [reading_target(COUNTER, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[i % V for i in range(prompt)], max_tokens=60, **GREEDY)
    assert answer.ids == [(prompt + i) % V for i in range(60)]
    assert has_one_row_per_position(drafter)
    accepted = [chunk.num_accepted_tokens for chunk in answer.chunks]
    assert accepted[:10] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


async def test_negative_control_rows_of_the_node_before_are_seen(tmp_path: Path) -> None:
    """A coordinator that took each row one node too early would be caught."""
    folder = letters_folder(tmp_path / "m", V)

    async def late(request: Request, reply: Any) -> Any:
        rows = reply.features.rows
        shifted = FeatureRows(rows.offset, rows.rows, rows.data[-rows.row_bytes :] + rows.data[: -rows.row_bytes])
        return replace(reply, features=VerifiedFeatures(shifted, reply.features.context_rows))

    drafter = reader(COUNTER, folder, propose=Mixed())
    with pytest.raises(AssertionError, match="has the row of another"):
        async with stack(folder, [reading_target(COUNTER, folder, script=late)], [drafter]) as s:
            await s.generate(token_ids=[1, 2], max_tokens=10, **GREEDY)


@pytest.mark.parametrize("parents", [None, (0, 0, 1, 1, 2)])
@pytest.mark.parametrize("verification", ["rejection", "coupled", "typical"])
async def test_sampled_chains_and_trees_bring_the_accepted_nodes_rows(
    tmp_path: Path, parents: tuple[int, ...] | None, verification: str
) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    drafter = reader(MARKOV_5_DRAFT, folder, parents=parents)
    async with stack(folder, [reading_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[1, 2, 3], max_tokens=80, num_draft_tokens=5, verification=verification)
    assert len({chunk.num_accepted_tokens for chunk in answer.chunks}) > 2
    assert has_one_row_per_position(drafter)


async def killed_in_cycle(number: int, replicas: list[Any]) -> asyncio.Future[Any]:
    """Lets the replica hang that serves this cycle, and tells which."""
    killed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def die(request: Request, reply: Any) -> Any:
        if request.cycle == number and not killed.done():
            killed.set_result(next(r for r in replicas if r.streams))
            await silent(request, reply)
        return reply

    for one in replicas:
        one.script = die
    return killed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that failed are looked at again soon."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.02)


async def test_a_new_verifier_delivers_the_window_again_and_no_position_is_lost(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", V)
    targets = [reading_target(COUNTER, folder, replica_id=str(i)) for i in range(2)]
    drafter = reader(COUNTER, folder, propose=Mixed())
    killed = await killed_in_cycle(9, targets)
    async with stack(folder, targets, [drafter]) as s:
        running = asyncio.create_task(s.generate(token_ids=[3] * 200, max_tokens=80, **GREEDY))
        dead = await killed
        await s.kill(dead)
        answer = await running
    (other,) = [t for t in targets if t is not dead]
    first = other.sent(answer.started.session_id)[0]
    assert (first.cycle, first.offset, first.open.feature_layers) == (9, 0, drafter.reads)
    assert has_one_row_per_position(drafter)


async def test_a_new_drafter_is_sent_the_window_before_it_goes_on(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", V)
    drafters = [reader(COUNTER, folder, propose=Mixed(), replica_id=str(i)) for i in range(2)]
    killed = await killed_in_cycle(30, drafters)
    async with stack(folder, [reading_target(COUNTER, folder)], drafters) as s:
        running = asyncio.create_task(s.generate(token_ids=[3] * 9, max_tokens=150, **GREEDY))
        dead = await killed
        await s.kill(dead)
        await running
    (other,) = [d for d in drafters if d is not dead]
    (length, rows), *_ = other.seen
    assert rows == list(range(length - 1 - FEATURE_WINDOW, length - 1))
    assert not dead.twice and not other.twice
    assert all(held == list(range(rows[0], n - 1)) for n, held in other.seen)


async def test_a_drafter_that_forgot_is_told_again_with_rows(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", V)
    drafter = reader(COUNTER, folder, propose=Mixed())

    async def forget(request: Request, reply: Any) -> Any:
        if request.cycle == 12:
            drafter.evict(20)
            for stream in drafter.streams:
                stream.rows = {i: data for i, data in stream.rows.items() if i < 20}
        return reply

    drafter.script = forget
    async with stack(folder, [reading_target(COUNTER, folder)], [drafter]) as s:
        await s.generate(token_ids=[3] * 9, max_tokens=60, **GREEDY)
    assert not drafter.twice
    assert all(rows == list(range(length - 1)) for length, rows in drafter.seen[1:])


@pytest.mark.parametrize("fields", [{"drafter": "ngram"}, {"num_draft_tokens": 0}])
async def test_who_reads_none_pays_for_none(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = letters_folder(tmp_path / "m", V)
    target, drafter = reading_target(COUNTER, folder), reader(COUNTER, folder, propose=Mixed())
    names = {"drafters": ("lm", "ngram"), "drafter_infos": (DrafterInfo("lm", False, (2,), SIZE),)}
    drafter.info_overrides.update(names)
    async with stack(folder, [target], [drafter]) as s:
        answer = await s.generate(token_ids=[1, 2], max_tokens=30, **{**GREEDY, **fields})
    requests = target.sent(answer.started.session_id)
    assert [r.open.feature_layers for r in requests if r.open is not None] == [()]
    assert not any(rows for _, rows in drafter.seen)


async def test_the_same_text_costs_the_bytes_of_its_rows_more_and_they_are_counted(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", V)

    async def generated(reads: tuple[int, ...]) -> Answer:
        drafter = reader(COUNTER, folder, reads=reads, propose=lambda context, k: [0] * k)
        async with stack(folder, [reading_target(COUNTER, folder)], [drafter]) as s:
            return await s.generate(token_ids=[1, 2], max_tokens=30, **GREEDY)

    plain, one, two = [await generated(reads) for reads in ((), (2,), (2, 5))]
    assert plain.ids == one.ids == two.ids
    rows = 1 + sum(1 + chunk.num_accepted_tokens for chunk in one.chunks)
    assert two.stats.bytes_received - one.stats.bytes_received == pytest.approx(rows * 12, abs=len(one.chunks) + 1)


@pytest.mark.parametrize(
    ("infos", "named"),
    [
        ({"made_for": "another"}, ["another", "base"]),
        ({"reads": (2, 7)}, ["[2, 7]", "has 6"]),
    ],
)
async def test_a_drafter_made_for_another_target_is_excluded_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, infos: dict[str, Any], named: list[str]
) -> None:
    folder = letters_folder(tmp_path / "m", V)
    drafter = reader(COUNTER, folder, propose=Mixed(), **infos)
    with caplog.at_level(logging.ERROR):
        async with stack(folder, [reading_target(COUNTER, folder)], [drafter]) as s:
            answer = await s.generate(token_ids=[1, 2], max_tokens=10, **GREEDY)
            assert not s.drafters.ready()
            assert s.metric("specdec_excluded_replicas", role="draft", reason="drafters") == 1
    assert answer.ids == [3 + i for i in range(10)] and not drafter.seen
    (line,) = [r.getMessage() for r in caplog.records if "drafter lm of" in r.getMessage()]
    assert all(word in line for word in named)


async def test_what_fits_beside_it_goes_on_being_served(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", V)
    drafter = reader(
        COUNTER, folder, propose=lambda context, k: [(context[-1] + 1 + i) % V for i in range(k)], reads=()
    )
    infos = (DrafterInfo("eagle", False, (2,), SIZE + 1), DrafterInfo("lm"))
    drafter.info_overrides.update({"drafters": ("eagle", "lm"), "drafter_infos": infos})
    async with stack(folder, [reading_target(COUNTER, folder)], [drafter]) as s:
        await until(lambda: bool(s.drafters.ready()))
        assert s.drafters.drafters_seen() == ["lm"]
        answer = await s.generate(token_ids=[1, 2], max_tokens=10, drafter="lm", **GREEDY)
    assert answer.ids == [3 + i for i in range(10)]


async def test_a_planned_turn_asks_a_reader_once_it_has_something_to_read(tmp_path: Path) -> None:
    """Named and planned: the first cycle is plain, and what came of it is not held against the drafter."""
    folder = letters_folder(tmp_path / "m", V)
    drafter = reader(COUNTER, folder, propose=lambda context, k: [(context[-1] + 1 + i) % V for i in range(k)])
    async with stack(folder, [reading_target(COUNTER, folder)], [drafter]) as s:
        answer = await s.generate(token_ids=[1, 2], max_tokens=40, temperature=0.0, drafter="lm")
    assert answer.ids == [(3 + i) % V for i in range(40)]
    assert answer.chunks[0].num_draft_tokens == 0
    assert drafter.seen and all(rows == list(range(length - 1)) for length, rows in drafter.seen)
