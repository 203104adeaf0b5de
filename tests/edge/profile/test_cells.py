"""From samples to cells, and to the advice that they give."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specdec.core.speedup import best_k
from specdec.edge.profile.cells import ALL, AUTO, PLAIN, Cell, Key, cells, configurations, recommendation
from specdec.edge.profile.cycles import CycleSample
from specdec.edge.profile.picture import draw_picture
from specdec.edge.profile.report import content, table, write_json
from tests.edge.profile.made_up import Given, chains, cycle, plain

MAX_K = 16


def samples(alphas: dict[str, float], ks: tuple[int, ...] = (2, 4, 8), c: float = 0.1) -> dict[Key, list[CycleSample]]:
    """One drafter in each domain at one alpha, at T = 1."""
    out: dict[Key, list[CycleSample]] = {}
    for domain, alpha in alphas.items():
        out[Key(domain, 1.0, PLAIN, 0)] = plain(200)
        for k in ks:
            out[Key(domain, 1.0, "lm", k)] = chains(alpha, k, 2000, Given(c=c), seed=k)
    return out


def one(found: list[Cell], domain: str, drafter: str = "lm") -> Cell:
    (cell,) = [cell for cell in found if (cell.domain, cell.drafter) == (domain, drafter)]
    return cell


def test_the_best_k_is_found_both_ways() -> None:
    found = one(cells(samples({"code": 0.8}), MAX_K), "code")
    assert found.best_predicted == best_k(0.8, 0.1, 0.0, 0.0, MAX_K) == 6
    assert found.best_measured in (4, 8)
    for point in found.points:
        assert point.predicted_speedup == pytest.approx(point.speedup, rel=0.05)
        assert point.predicted_tokens == pytest.approx(point.tokens, rel=0.05)


def test_where_every_k_loses_the_best_is_not_to_draft() -> None:
    found = cells(samples({"prose": 0.2}, c=0.5), MAX_K)
    assert one(found, "prose").best_measured == one(found, "prose").best_predicted == 0
    assert recommendation(found).startswith("Decode plainly")


def test_the_cell_over_all_domains_pools_their_cycles() -> None:
    found = cells(samples({"code": 0.9, "prose": 0.3}), MAX_K)
    whole = one(found, ALL)
    assert whole.judged == one(found, "code").judged + one(found, "prose").judged
    assert one(found, "prose").alpha == pytest.approx(0.3)
    assert whole.exact_alpha is not None and 0.3 < whole.exact_alpha < 0.9
    assert found[-1].domain == ALL


def test_the_advice_names_the_fastest_and_where_it_loses() -> None:
    found = cells(samples({"code": 0.95, "prose": 0.1}), MAX_K)
    ranked = configurations(found)
    assert [one.speedup for one in ranked] == sorted((one.speedup for one in ranked), reverse=True)
    advice = recommendation(found)
    assert f"drafter lm, num_draft_tokens = {ranked[0].k}" in advice
    assert "It loses on prose at T = 1 (0." in advice and "code" not in advice


def test_auto_is_advised_where_it_is_about_as_good() -> None:
    given = samples({"code": 0.9})
    given[Key("code", 1.0, AUTO, None)] = chains(0.9, 8, 2000, seed=8)
    assert recommendation(cells(given, MAX_K)).startswith("Use drafter auto (the default): ")
    given[Key("code", 1.0, AUTO, None)] = plain(100)
    assert recommendation(cells(given, MAX_K)).startswith("Use drafter lm, num_draft_tokens = 8")


def test_an_empty_configuration_is_left_out() -> None:
    given = samples({"code": 0.8})
    given[Key("code", 1.0, "ngram", 4)] = []
    assert {cell.drafter for cell in cells(given, MAX_K)} == {"lm"}
    assert cells({Key("code", 1.0, "lm", 4): chains(0.5, 4, 10)}, MAX_K) == [], "nothing to compare with"


def everything() -> list[Cell]:
    given = samples({"code": 0.9, "prose": 0.3})
    given[Key("code", 1.0, AUTO, None)] = chains(0.9, 3, 100)
    given[Key("code", 1.0, "eagle2", 24)] = [cycle(4, i % 5, nodes=24) for i in range(100)]
    given[Key("code", 0.0, PLAIN, 0)] = plain(20)
    given[Key("code", 0.0, "ngram", 4)] = [*plain(20), cycle(2, 1, drafter="ngram")]
    given[Key("code", 0.0, "suffix", 4)] = plain(20)
    return cells(given, MAX_K)


def test_the_json_has_an_alpha_per_drafter_and_is_strict() -> None:
    parsed: dict[str, Any] = json.loads(write_json(everything(), {"target": "t"}))
    assert parsed["drafters"]["lm"]["sampled"]["alpha"] == pytest.approx(one(everything(), ALL).exact_alpha)
    assert parsed["drafters"]["ngram"] == {"greedy": {"alpha": 0.5, "positions": 2}}
    assert AUTO not in parsed["drafters"]
    assert parsed["recommendation"] == content(everything(), {})["recommendation"]
    never = next(cell for cell in parsed["cells"] if cell["drafter"] == "suffix")
    assert never["costs"]["c"] is None


def test_table_and_picture_show_every_cell(tmp_path: Path) -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(table(everything(), "a target"))
    text = console.export_text()
    assert text.count("eagle2") == text.count("suffix") == 2
    draw_picture(everything(), "a target", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
