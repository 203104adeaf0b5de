from __future__ import annotations

import re

import pytest
from rich.console import Console

from protos.generation_pb2 import (
    TOKEN_ORIGIN_ACCEPTED,
    TOKEN_ORIGIN_BONUS,
    TOKEN_ORIGIN_RECOVERED,
    Chunk,
    DraftStats,
)
from specdec.edge.comparison import Comparison, Run
from specdec.edge.terminal import coloured, comparison_table, legend, printable, statistics
from tests.edge.scripted_generation import chunk, complete


def rendered(renderable: object) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def cells(text: str, label: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if label in line)
    return re.split(r"\s{2,}", line.strip())[1:]


def made(*tokens: tuple[str, int]) -> Chunk:
    return chunk(0, *tokens).chunk


def test_each_origin_has_its_own_style_and_the_legend_shows_it() -> None:
    origins = (TOKEN_ORIGIN_ACCEPTED, TOKEN_ORIGIN_RECOVERED, TOKEN_ORIGIN_BONUS)
    text = coloured(made(*(("x", origin) for origin in origins)))
    styles = [str(span.style) for span in text.spans]
    assert text.plain == "xxx"
    assert len(set(styles)) == 3
    assert {str(span.style) for span in legend().spans} >= set(styles)


def test_a_model_cannot_send_escape_sequences_to_the_terminal() -> None:
    hostile = "a\x1b[2Jb\x07c\x9bd\r\n\te"
    bad = "\N{REPLACEMENT CHARACTER}"
    assert printable(hostile) == f"a{bad}[2Jb{bad}c{bad}d{bad}\n\te"
    assert coloured(made((hostile, TOKEN_ORIGIN_ACCEPTED))).plain == printable(hostile)
    assert "[bold]" in rendered(coloured(made(("[bold]", TOKEN_ORIGIN_ACCEPTED))))


def test_statistics_divide_by_what_was_counted() -> None:
    figures = complete(
        cycles=2, drafts=1, draft_tokens=8, accepted_tokens=2, exact_alpha_sum=1.5, exact_alpha_count=3,
        bytes_sent=100, bytes_received=50, time_to_first_token=0.5, decode_seconds=1.5, fallbacks={"late": 1},
    ).complete  # fmt: skip
    text = rendered(statistics(figures))
    for shown in ("25%", "2.00", "0.500", "50 / 25", "late 1", "2.0"):
        assert shown in text


def test_statistics_say_whose_drafts_were_judged_and_whether_the_output_is_the_targets() -> None:
    exact, lossy = (complete(cycles_per_drafter={"eagle": 3, "": 2}, lossy=lossy).complete for lossy in (False, True))
    assert cells(rendered(statistics(exact)), "cycles per drafter") == ["no draft 2, eagle 3"]
    assert "lossy" not in rendered(statistics(exact))
    assert "lossy" in rendered(statistics(lossy))


def test_statistics_of_nothing_are_dashes_and_not_a_division_by_zero() -> None:
    text = rendered(statistics(complete().complete))
    assert "-" in text and "nan" not in text


def run(tokens: int, seconds: float, **stats: float) -> Run:
    return Run(tuple(range(tokens)), seconds, DraftStats(**stats))  # type: ignore[arg-type]


@pytest.fixture
def comparison() -> Comparison:
    stats = {"cycles": 4, "draft_tokens": 10, "accepted_tokens": 8, "bytes_sent": 400, "bytes_received": 80}
    speculative = tuple(run(12, seconds, **stats) for seconds in (1.0, 2.0, 100.0))
    return Comparison("copying", speculative, tuple(run(12, seconds) for seconds in (4.0, 3.0, 6.0)))


def test_the_table_shows_medians_and_their_ratio(comparison: Comparison) -> None:
    text = rendered(comparison_table([comparison]))
    assert cells(text, "tokens/s with speculation") == ["6.0"]
    assert cells(text, "tokens/s at k = 0") == ["3.0"]
    assert cells(text, "ratio") == ["2.00x"]
    assert cells(text, "acceptance rate") == ["80%"]
    assert cells(text, "mean acceptance length") == ["3.00"]
    assert cells(text, "exact alpha") == ["-"]
    assert cells(text, "cycle, sent") == ["100"]
    assert cells(text, "cycle, received") == ["20"]
    assert cells(text, "identical") == ["yes"]


def test_one_differing_token_is_seen(comparison: Comparison) -> None:
    differing = Comparison("x", comparison.speculative, (*comparison.plain[:2], run(13, 1.0)))
    assert not differing.identical
    assert cells(rendered(comparison_table([differing])), "identical") == ["NO"]


def test_exact_alpha_is_a_mean_over_positions() -> None:
    runs = (run(4, 1.0, exact_alpha_sum=3.0, exact_alpha_count=4), run(4, 1.0, exact_alpha_count=1))
    assert Comparison("x", runs, (run(4, 1.0), run(4, 1.0))).exact_alpha == pytest.approx(0.6)
