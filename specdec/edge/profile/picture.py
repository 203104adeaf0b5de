"""The picture of a profile. matplotlib is asked for only here, and only where a picture is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec.core.errors import ConfigError
from specdec.edge.profile.cells import ALL, AUTO, Cell

NEEDED = "needs matplotlib: pip install 'specdec[profile]'"
WIDTH, HEIGHT = 5.0, 4.0  # inches of one diagram


def check_picture(file: Path) -> None:
    """Before an hour of measuring. Raises ConfigError where no picture could be written to `file`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise ConfigError("picture", str(file), NEEDED) from None
    if file.suffix.lstrip(".") not in FigureCanvasAgg.get_supported_filetypes():
        raise ConfigError("picture", str(file), "name a .png or .svg file")
    if not file.parent.is_dir():
        raise ConfigError("picture", str(file), "its folder does not exist")


def draw_picture(found: Sequence[Cell], title: str, file: Path) -> None:
    """One row of diagrams per temperature: acceptance by position beside the geometric prediction, speedup over k
    beside the predicted one, and the best speedup by domain."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    temperatures = sorted({one.temperature for one in found})
    figure: Any = Figure(figsize=(3 * WIDTH, HEIGHT * len(temperatures)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    rows: Any = figure.subplots(len(temperatures), 3, squeeze=False)
    for temperature, (left, middle, right) in zip(temperatures, rows, strict=True):
        here = [one for one in found if one.temperature == temperature]
        whole = [one for one in here if one.domain == ALL]
        _acceptance(left, [one for one in whole if one.drafter != AUTO], temperature)
        _speedups(middle, whole)
        _domains(right, [one for one in here if one.domain != ALL])
    handles, labels = rows[0][2].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(file, dpi=120)


def _acceptance(axes: Any, whole: Sequence[Cell], temperature: float) -> None:
    for number, one in enumerate(whole):
        positions = [i + 1 for i, share in enumerate(one.accepted) if share is not None]
        shares = [share for share in one.accepted if share is not None]
        axes.plot(positions, shares, "o-", color=f"C{number}", label=one.drafter)
        axes.plot(positions, one.geometric[: len(positions)], ":", color=f"C{number}")
    axes.set(
        title=f"T = {temperature:g}: accepted to a position", xlabel="position (dotted: geometric)", ylim=(0, 1.02)
    )


def _speedups(axes: Any, whole: Sequence[Cell]) -> None:
    for number, one in enumerate(whole):
        points = [point for point in one.points if point.k is not None]
        if not points:
            axes.axhline(one.best.speedup, color="black", linestyle="--", label=one.drafter)
            continue
        color = f"C{number - any(other.drafter == AUTO for other in whole[:number])}"
        axes.plot([p.k for p in points], [p.speedup for p in points], "o-", color=color, label=one.drafter)
        known = [p for p in points if p.predicted_speedup is not None]
        axes.plot([p.k for p in known], [p.predicted_speedup for p in known], ":", color=color)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(title="speedup over plain decoding", xlabel="draft tokens (dotted: cost model)", ylim=(0, None))


def _domains(axes: Any, here: Sequence[Cell]) -> None:
    domains = list(dict.fromkeys(one.domain for one in here))
    drafters = list(dict.fromkeys(one.drafter for one in here))
    width = 0.8 / max(1, len(drafters))
    for number, drafter in enumerate(drafters):
        bars = {one.domain: one.best.speedup for one in here if one.drafter == drafter}
        places = [domains.index(domain) + number * width for domain in bars]
        axes.bar(places, list(bars.values()), width, label=drafter, color="black" if drafter == AUTO else None)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(title="best speedup by domain")
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(domains))], domains)
