"""Sessions that together need more keys and values than there is room for."""

from __future__ import annotations

import pytest

from specdec.lm.network import BLOCK
from target_service import room
from target_service.engine import ForwardReport
from tests.target_service.conftest import MakeEngine
from tests.target_service.driver import Turn, generate, run
from tests.target_service.test_engine import prompt

SESSIONS, CONTEXT, LENGTH = 16, 3 * BLOCK, 40


class Clock:
    """Virtual: each look at it takes a tick."""

    def __init__(self, tick: float = 0.001) -> None:
        self.now, self._tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self._tick
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def crowd() -> list[Turn]:
    return [Turn(prompt(CONTEXT, 50 + i), LENGTH, session_id=str(i)) for i in range(SESSIONS)]


def rows_computed(make_engine: MakeEngine, blocks: int) -> tuple[int, list[list[int]]]:
    reports: list[ForwardReport] = []
    clock = Clock()
    engine = make_engine(
        kv_tokens=blocks * BLOCK, token_budget=256, report=reports.append, clock=clock, pause=clock.pause
    )
    turns = crowd()
    run(engine, turns)
    return sum(report.rows for report in reports), [turn.output for turn in turns]


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
def test_too_little_room_for_all_costs_waiting_and_not_work(make_engine: MakeEngine, share: float) -> None:
    """They take turns of a length that makes it worth while, instead of taking from each other in every cycle."""
    needed = SESSIONS * (CONTEXT + LENGTH) // BLOCK + SESSIONS
    enough, outputs = rows_computed(make_engine, needed)
    short, same = rows_computed(make_engine, int(share * needed))
    assert same == outputs
    assert short < 2.5 * enough


def test_without_turns_hardly_anything_else_is_computed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    for name in ("KEPT", "TAKEN", "LEAST"):
        monkeypatch.setattr(room, name, 0.0)
    needed = SESSIONS * (CONTEXT + LENGTH) // BLOCK + SESSIONS
    assert rows_computed(make_engine, int(0.6 * needed))[0] > 4 * rows_computed(make_engine, needed)[0]


def test_nobody_waits_for_ever(make_engine: MakeEngine) -> None:
    """Room for one of them: every one comes to its end all the same, those that came first not by much sooner."""
    clock = Clock()
    engine = make_engine(kv_tokens=6 * BLOCK, token_budget=256, clock=clock, pause=clock.pause)
    turns = crowd()[:4]
    run(engine, turns)
    assert [turn.output for turn in turns] == [generate(make_engine(), turn.prompt, LENGTH) for turn in turns]
    assert engine.kv_free == engine.kv_total
