"""The one convention of every benchmark: rows of `measure, subject, baseline, value, baseline_value, ratio, unit`, as a
table on the terminal with commit and hardware, and as JSON (`--json FILE`); `--quick` stays under a minute; `--plot
FILE` where a picture says more."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its baseline of the same run; baseline "": none. ratio: value over baseline_value."""

    measure: str
    subject: str
    value: float
    unit: str
    baseline: str = ""
    baseline_value: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline_value if self.baseline_value else None


def parser(description: str, *, plot: bool = False) -> argparse.ArgumentParser:
    """The flags that every benchmark has."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--json", metavar="FILE", help="write the rows there as well")
    arguments.add_argument("--quick", action="store_true", help="under a minute: fewer repeats and configurations")
    if plot:
        arguments.add_argument("--plot", metavar="FILE", help="write a picture there")
    return arguments


def report(title: str, rows: Sequence[Row], json_file: str | None) -> None:
    """Prints the table; writes the JSON."""
    table = Table(title=f"{title}\n{commit()} on {hardware()}", title_justify="left")
    for name in ("measure", "subject", "value", "baseline", "its value", "ratio"):
        table.add_column(name, justify="left" if name in ("measure", "subject", "baseline") else "right")
    for row in rows:
        table.add_row(
            row.measure,
            row.subject,
            f"{row.value:.4g} {row.unit}",
            row.baseline,
            "" if row.baseline_value is None else f"{row.baseline_value:.4g} {row.unit}",
            "" if row.ratio is None else f"{row.ratio:.3f}",
        )
    Console(width=160 if not os.isatty(1) else None).print(table)
    if json_file:
        content = [asdict(row) | {"ratio": row.ratio, "commit": commit(), "hardware": hardware()} for row in rows]
        Path(json_file).write_text(json.dumps(content, indent=1) + "\n")


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share q of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(q * len(ordered)) - 1))]


def commit() -> str:
    """Short hash of HEAD, marked if the tree differs from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return described.stdout.strip()


def hardware() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return f"{os.cpu_count()} cores, {cpu}"
