"""Short sessions one after the other, each beginning with what the one before it knew."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from specdec.core.planner import Planner, handed_on
from specdec.core.source_record import HANDED_ON
from tests.core.worlds import BAD, FAIR, GOOD, LIMIT, PLAIN_RATE, Source, World, best_rate, life

SESSIONS, CYCLES, FIRST = 60, 40, 20


def later_rate(world: World, *, hand_on: bool = True, seed: int = 1000) -> float:
    """Mean tokens per second of the sessions after the first few."""
    planner, rates = Planner(), []
    for session in range(SESSIONS):
        lived = life(seed + session, planner)
        rates.append(lived.live(lambda n: world, CYCLES))
        planner = handed_on(lived.planner, planner) if hand_on else Planner()
    return sum(rates[FIRST:]) / len(rates[FIRST:])


WORLDS: Mapping[str, tuple[World, float]] = {
    "useless sources": ({str(i): Source(0.02, 1.0 + i, 5.0) for i in range(5)}, PLAIN_RATE),
    "one good, one bad": ({"good": GOOD, "bad": BAD}, best_rate(GOOD)),
    "a good one behind bad ones": ({"a": BAD, "b": BAD, "good": GOOD}, best_rate(GOOD)),
    "fair": ({"fair": FAIR}, best_rate(FAIR)),
    "a gain of a tenth": ({"lm": Source(0.5, 1.0, 2.5)}, max(PLAIN_RATE, best_rate(Source(0.5, 1.0, 2.5)))),
    "too far": ({"lm": Source(0.7, 1.0, 25.0)}, PLAIN_RATE),
}


@pytest.mark.parametrize("name", WORLDS)
def test_short_sessions_come_within_three_percent_of_what_is_best(name: str) -> None:
    world, best = WORLDS[name]
    assert later_rate(world) > 0.97 * best


def test_without_it_every_short_session_pays_for_its_own_tries() -> None:
    """What this is for; and the test above can fail."""
    world, best = WORLDS["a good one behind bad ones"]
    assert later_rate(world, hand_on=False) < 0.97 * best


def test_a_text_that_is_unlike_the_last_sessions_is_soon_judged_by_itself() -> None:
    before = life(1)
    before.live(lambda n: {"lm": GOOD}, 200)
    lived = life(2, handed_on(before.planner, Planner()))
    lived.live(lambda n: {"lm": BAD}, 40)
    assert sum(k > 0 for _, k in lived.chosen[-20:]) < 5


def test_what_is_handed_on_weighs_no_more_than_a_few_drafts() -> None:
    lived = life(3)
    lived.live(lambda n: {"lm": GOOD}, 300)
    record = handed_on(lived.planner, Planner()).sources["lm"]
    assert max(record.tries) <= HANDED_ON and record.seconds.weight <= HANDED_ON
    assert record.last <= 0 and not record.run and record.asks == lived.planner.sources["lm"].asks
    assert handed_on(lived.planner, Planner()).batch.weight == 0 and len(record.tries) <= LIMIT
