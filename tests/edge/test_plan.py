"""`specdec plan` against the worked examples of the cost model (algorithms.md, section 11)."""

from __future__ import annotations

import pytest

from specdec.edge.cli import main


def plan(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[dict[int, tuple[str, str]], int, str]:
    """k -> (tokens per cycle, speedup); the k marked best; everything printed."""
    assert main(["plan", *flags]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    (best,) = (int(k) for k, _, _, mark in rows if mark == "<- best")
    return {int(k): (tokens, speedup) for k, tokens, speedup, _ in rows}, best, out


@pytest.mark.parametrize(
    ("alpha", "tokens", "speedup"), [(".75", "3.05", "2.18x"), (".9", "4.10", "2.93x"), (".5", "1.94", "1.38x")]
)
def test_the_worked_examples_at_four_draft_tokens(
    capsys: pytest.CaptureFixture[str], alpha: str, tokens: str, speedup: str
) -> None:
    table, _, _ = plan(capsys, "--alpha", alpha, "--c", ".1")
    assert table[4] == (tokens, speedup)
    assert table[0] == ("1.00", "1.00x")


@pytest.mark.parametrize(
    ("round_trips", "best"), [(("0", "0"), 6), (("1", "0"), 8), (("0.5", "0.5"), 8), (("2", "2"), 11), (("4", "0"), 11)]
)
def test_the_best_k_grows_with_the_network(
    capsys: pytest.CaptureFixture[str], round_trips: tuple[str, str], best: int
) -> None:
    rho, rho_d = round_trips
    flags = ("--alpha", ".8", "--c", ".1", "--round-trip", rho, "--draft-round-trip", rho_d)
    assert plan(capsys, *flags)[1] == best


def test_where_speculation_does_not_pay_the_best_k_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    _, best, out = plan(capsys, "--alpha", ".2", "--c", ".5")
    assert best == 0
    assert "does not pay" in out


@pytest.mark.parametrize(
    "flags", [("--alpha", "1.5", "--c", ".1"), ("--alpha", ".5", "--c", "-1"), ("--alpha", "nan", "--c", "1")]
)
def test_impossible_figures_are_refused_by_name(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    assert main(["plan", *flags]) == 2
    assert "must be" in capsys.readouterr().err
