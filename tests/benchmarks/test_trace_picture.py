"""Spans of a request that was made up, put together and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.trace_picture import draw, rows_of
from benchmarks.traced_cycles import Bar, traced_request
from specdec.edge import telemetry as names
from tests.otlp_receiver import ReceivedSpan

START = 1_000_000_000
NAMES = ("draft", "verify", "accept", "commit")


def span(trace: str, parent: str, name: str, begin: float, end: float, **attributes: Any) -> ReceivedSpan:
    """Times in milliseconds from START."""
    given = {getattr(names, key): value for key, value in attributes.items()}
    times = (START + round(begin * 1e6), START + round(end * 1e6))
    return ReceivedSpan("x", name, trace, f"{trace}/{parent}/{name}/{begin}", parent, given, *times, "")


def request(trace: str, at: float, cycles: int) -> list[ReceivedSpan]:
    """Each cycle takes 100 ms: 40 the draft, 35 of them the drafter's; 50 verification, 42 of them the verifier's."""
    root = span(trace, "", names.SPAN_GENERATE, at, at + 100 * cycles)
    spans = [root]
    for number in range(1, cycles + 1):
        begin = at + 100 * (number - 1)
        counts = {"NUM_DRAFT_TOKENS": 4, "NUM_ACCEPTED_TOKENS": 2, "NUM_EMITTED_TOKENS": 3}
        cycle = span(trace, root.span_id, names.SPAN_CYCLE, begin, begin + 100, CYCLE=number, **counts)
        draft = span(trace, cycle.span_id, names.SPAN_DRAFT, begin, begin + 40)
        verify = span(trace, cycle.span_id, names.SPAN_VERIFY, begin + 41, begin + 91)
        accept = span(trace, cycle.span_id, names.SPAN_ACCEPT, begin + 92, begin + 93)
        commit = span(trace, cycle.span_id, names.SPAN_COMMIT, begin + 100, begin + 103)
        propose = span(trace, draft.span_id, names.SPAN_PROPOSE, begin + 2, begin + 37)
        forward = span(trace, verify.span_id, names.SPAN_FORWARD, begin + 46, begin + 88)
        spans += [forward, propose, draft, verify, accept, commit, cycle]
    return spans[::-1]


def test_the_last_request_is_put_together_from_its_own_spans() -> None:
    found = traced_request([*request("a", 0, 6), *request("b", 700, 5)])
    assert (found.length, len(found.cycles)) == (500, 5)
    second = found.cycles[1]
    assert (second.number, second.drafted, second.accepted, second.emitted) == (2, 4, 2, 3)
    assert second.whole == Bar(100, 200)
    assert set(second.phases) == set(NAMES)
    assert second.propose == Bar(102, 137)
    assert [way.length for way in second.ways] == [2, 3, 5, 3]
    assert second.network_share == found.network_share == pytest.approx(0.13)


def test_a_cycle_that_asked_no_drafter_crossed_the_network_once() -> None:
    spans = [s for s in request("a", 0, 2) if s.name != names.SPAN_PROPOSE]
    assert [way.length for way in traced_request(spans).cycles[0].ways] == [5, 3]


def test_the_picture_and_the_table_are_made_of_it(tmp_path: Path) -> None:
    found = traced_request(request("a", 0, 6))
    draw(found, "a request", tmp_path / "trace.png")
    assert (tmp_path / "trace.png").stat().st_size > 10_000
    figures = {row.measure: row.value for row in rows_of(found)}
    assert figures["cycle p50"] == 100
    assert figures["tokens per cycle"] == 3
    assert figures["network share"] == pytest.approx(13)
