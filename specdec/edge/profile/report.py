"""A profile for people and for programs: a table, and the JSON that `coordinator --profile` reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from specdec.core.drift import GREEDY, SAMPLED
from specdec.edge.profile.cells import ALL, AUTO, Cell, Point, recommendation

VERSION = 1
SHOWN_POSITIONS = 4
COLUMNS = (
    "domain", "T", "drafter", "alpha", "accepted by position (geometric)", "c", "row", "best k: pred., meas.",
    "tokens/cycle: exp., meas.", "speedup: pred., meas.",
)  # fmt: skip


def table(found: Sequence[Cell], title: str) -> Table:
    """One line a cell. Figures per k are those of the fastest measured one."""
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in COLUMNS:
        out.add_column(name, justify="left" if name in ("domain", "drafter") else "right")
    for one in found:
        best = one.best
        out.add_row(
            *(one.domain, f"{one.temperature:g}", one.drafter, _alpha(one), _positions(one)),
            *(_number(one.costs.c), _number(one.costs.row), f"{_k(one.best_predicted)}, {_k(one.best_measured)}"),
            *(f"{_number(best.predicted_tokens)}, {best.tokens:.2f}", _speedups(best)),
            style="bold" if one.domain == ALL else "red" if best.speedup < 1 else "",
        )
    return out


def content(found: Sequence[Cell], setting: dict[str, Any]) -> dict[str, Any]:
    """What `--json` writes. drafters: alpha of each, apart for greedy and sampled decoding, over all domains; greedy
    acceptance can only be counted. setting: what was profiled, in words."""
    return {
        "version": VERSION,
        **setting,
        "drafters": expected_alphas(found),
        "recommendation": recommendation(found),
        "cells": [_finite(asdict(one)) for one in found],
    }


def expected_alphas(found: Sequence[Cell]) -> dict[str, dict[str, dict[str, float]]]:
    """drafter -> greedy or sampled -> {"alpha": mean over the judged positions, "positions": their number}."""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for one in found:
        if one.domain == ALL and one.drafter != AUTO and one.alpha is not None and one.judged:
            key = (one.drafter, SAMPLED if one.temperature > 0 else GREEDY)
            total, positions = sums.get(key, (0.0, 0))
            sums[key] = total + one.alpha * one.judged, positions + one.judged
    out: dict[str, dict[str, dict[str, float]]] = {}
    for (drafter, sampling), (total, positions) in sums.items():
        out.setdefault(drafter, {})[sampling] = {"alpha": total / positions, "positions": positions}
    return out


def write_json(found: Sequence[Cell], setting: dict[str, Any]) -> str:
    return json.dumps(content(found, setting), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no infinity: an unknown cost becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _alpha(one: Cell) -> str:
    if one.exact_alpha is not None:
        return f"{one.exact_alpha:.3f}"
    return "-" if one.counted_alpha is None else f"{one.counted_alpha:.3f} counted"


def _positions(one: Cell) -> str:
    pairs = list(zip(one.accepted, one.geometric, strict=False))[:SHOWN_POSITIONS]
    return "  ".join(f"{_number(share)} ({expected:.2f})" for share, expected in pairs) or "-"


def _k(k: int | None) -> str:
    return "-" if k is None else str(k)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f}"


def _speedups(point: Point) -> str:
    predicted = "-" if point.predicted_speedup is None else f"{point.predicted_speedup:.2f}x"
    return f"{predicted}, {point.speedup:.2f}x"
