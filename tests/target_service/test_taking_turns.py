"""Sessions that together need more keys and values than there is room for."""

from __future__ import annotations

from typing import Any

import pytest

from specdec.core.step_time import StepTimeTable
from specdec.core.verification import Verification
from specdec.edge.messages import OpenSession, Refusal, VerifyRequest
from specdec.lm.network import BLOCK
from target_service import room
from target_service.schedule import Schedule
from target_service.session import VerifyJob, VerifyResult
from target_service.step_time import StepTimes
from tests.target_service.conftest import MakeEngine
from tests.target_service.driver import GREEDY, Turn, generate, ids, run
from tests.target_service.test_engine import prompt

SESSIONS, CONTEXT, LENGTH = 16, 3 * BLOCK, 40
NEEDED = SESSIONS * ((CONTEXT + LENGTH) // BLOCK + 1)  # blocks
STEP = 0.01  # seconds of a forward, beside its rows


class Clock:
    """Virtual: a forward takes what its rows cost, and each look at the clock a little."""

    def __init__(self, row: float) -> None:
        self.now, self._row = 0.0, row

    def __call__(self) -> float:
        self.now += 1e-5
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def forward(self, rows: int) -> None:
        self.now += STEP + self._row * rows


def crowd() -> list[Turn]:
    return [Turn(prompt(CONTEXT, 50 + i), LENGTH, session_id=str(i)) for i in range(SESSIONS)]


def lived(make_engine: MakeEngine, share: float, prefill: float) -> tuple[float, list[list[int]]]:
    """Seconds that the crowd takes with this share of the room that it needs, and its outputs."""
    clock = Clock(prefill / CONTEXT)
    table = StepTimeTable((1, 256), (0,), ((STEP,), (STEP + 256 * prefill / CONTEXT,)))
    engine = make_engine(
        kv_tokens=int(share * NEEDED) * BLOCK,
        token_budget=256,
        schedule=Schedule(256, 17, StepTimes(table), clock=clock),
        clock=clock,
        pause=clock.pause,
    )
    compute = engine._runner.compute

    def computed(segments: Any, layers: Any) -> Any:
        clock.forward(sum(segment.rows for segment in segments))
        return compute(segments, layers)

    engine._runner.compute = computed  # type: ignore[method-assign, assignment]
    turns = crowd()
    run(engine, turns, max_steps=100_000)
    return clock.now, [turn.output for turn in turns]


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
@pytest.mark.parametrize("prefill", [0.02, 0.1, 0.5])
def test_too_little_room_for_all_costs_turns_and_not_a_context_a_cycle(
    make_engine: MakeEngine, share: float, prefill: float
) -> None:
    """They take turns of a length that makes it worth while, instead of taking from each other in every cycle. What
    fewer at a time take longer is theirs: forwards are shared by fewer."""
    enough, outputs = lived(make_engine, 1.0, prefill)
    short, same = lived(make_engine, share, prefill)
    assert same == outputs
    assert short < 2 * enough + LENGTH * STEP / share


@pytest.mark.parametrize("prefill", [0.1, 0.5])
def test_without_turns_hardly_anything_else_is_computed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, prefill: float
) -> None:
    """The negative control of the test above."""
    enough, _ = lived(make_engine, 1.0, prefill)
    for name in ("KEPT", "TAKEN", "LEAST"):
        monkeypatch.setattr(room, name, 0.0)
    assert lived(make_engine, 0.6, prefill)[0] > 2 * enough + LENGTH * STEP / 0.6


def test_who_finds_no_room_in_time_is_told_before_he_gives_up(make_engine: MakeEngine) -> None:
    """As full, which is no fault: his sender goes elsewhere at once. Nothing of those at work is lost for that."""
    clock = Clock(0.001)
    engine = make_engine(kv_tokens=5 * BLOCK, token_budget=256, clock=clock, pause=clock.pause)
    first, second = (engine.open(OpenSession(str(i), GREEDY, 0, 1)) for i in range(2))
    holder = VerifyJob(first, VerifyRequest(0, 0, ids(prompt(CONTEXT, 1))))
    [(_, done)] = engine.step([holder])
    late = VerifyJob(second, VerifyRequest(0, 0, ids(prompt(CONTEXT, 2)), budget_us=50_000))
    told: list[tuple[VerifyJob, VerifyResult]] = []
    while not told:
        assert clock.now < 0.05
        told = engine.step([late])
    assert isinstance(told[0][1].result, Refusal) and told[0][1].result.reason == "OVERLOADED"
    assert first.sequence.num_context == CONTEXT and isinstance(done.result, Verification)


def test_nobody_waits_for_ever(make_engine: MakeEngine) -> None:
    """Room for one of them: every one comes to its end all the same, those that came first not by much sooner."""
    clock = Clock(0.001)
    engine = make_engine(kv_tokens=6 * BLOCK, token_budget=256, clock=clock, pause=clock.pause)
    turns = crowd()[:4]
    run(engine, turns)
    assert [turn.output for turn in turns] == [generate(make_engine(), turn.prompt, LENGTH) for turn in turns]
    assert engine.kv_free == engine.kv_total
