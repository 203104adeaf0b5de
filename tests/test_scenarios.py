"""The table of scenarios is what the tests say."""

from __future__ import annotations

from tests.scenario_table import TABLE, entries, render


def test_the_table_of_scenarios_is_fresh() -> None:
    assert TABLE.read_text(encoding="utf-8") == render(), "run: python -m tests.scenario_table"


def test_at_least_sixty_scenarios_are_tests() -> None:
    assert len({entry.scenario for entry in entries()}) >= 60
