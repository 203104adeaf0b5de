"""What needs no engine: to say so, and to tell a whole trace from a broken one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compose.trace import COORDINATOR, SHAPE, faults, of_session
from tests.otlp_receiver import ReceivedSpan

ROOT = Path(__file__).parents[2]


def span(name: str, service: str, parent: str, **attributes: str) -> ReceivedSpan:
    return ReceivedSpan(service, name, "trace", name.partition(" ")[0], parent, attributes, 0, 1, "")


def whole() -> list[ReceivedSpan]:
    """The trace of one cycle."""
    root = span("generate smollm2", COORDINATOR, "", **{"specdec.session.id": "s"})
    return [root, *(span(name, service, parent) for name, (service, parent) in SHAPE.items())]


def test_where_no_engine_answers_it_says_so_and_is_not_green(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.compose"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "nothing was shown: no Docker engine" in done.stderr and "Traceback" not in done.stderr


def test_a_whole_trace_has_no_faults() -> None:
    assert faults(whole(), 1) == []
    stranger = replace(whole()[0], trace_id="another", attributes={})
    assert of_session([*whole(), stranger], "s") == whole()


@pytest.mark.parametrize("name", SHAPE)
def test_a_span_that_is_missing_or_strayed_is_named(name: str) -> None:
    assert f"no span `{name}`" in faults([s for s in whole() if s.name != name], 1)
    strayed = [replace(s, parent_id="nobody") if s.name == name else s for s in whole()]
    assert any(f"`{name}` stands under" in fault for fault in faults(strayed, 1))
    mistaken = [replace(s, service="another") if s.name == name else s for s in whole()]
    assert f"`{name}` comes from another" in faults(mistaken, 1)


def test_cycles_without_their_spans_are_counted() -> None:
    assert "1 spans `specdec.cycle` for 2 cycles" in faults(whole(), 2)
