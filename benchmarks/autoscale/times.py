"""What things take: the tables that the simulation computes with, as JSON, with where they come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specdec.core.errors import ConfigError
from specdec.core.step_time import StepTimeTable

DEFAULT = Path(__file__).parent / "times.json"
CONTEXT_STEP = 128  # tokens of context within which forwards cost the same


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. origin: models, hardware and date, in words; target, draft: forwards of one replica by rows and context;
    verify_way: of a cycle, all but its queues and forwards and but `draft_way`, which is the way to a drafter and back;
    target_start, draft_start: of a process, until it serves; budget: token rows of a verifier's forward at most; alpha:
    acceptance that the pair had."""

    origin: str
    target: StepTimeTable
    draft: StepTimeTable
    verify_way: float
    draft_way: float
    target_start: float
    draft_start: float
    budget: int
    alpha: float

    @property
    def c(self) -> float:
        """Draft step over target step, one row each."""
        return self.draft.estimate(1, 256) / self.target.estimate(1, 256)

    def with_draft_cost(self, factor: float) -> Times:
        """Drafters that take so many times as long."""
        seconds = [[factor * one for one in line] for line in self.draft.seconds]
        return replace(self, draft=StepTimeTable.of(self.draft.rows, self.draft.contexts, seconds))


def write_times(times: Times, file: Path) -> None:
    file.write_text(json.dumps(asdict(times), indent=1) + "\n")


def read_times(file: Path) -> Times:
    """Raises ConfigError where the file does not hold what is wanted."""
    try:
        content = json.loads(file.read_text())
        for name in ("target", "draft"):
            content[name] = StepTimeTable.of(*(content[name][part] for part in ("rows", "contexts", "seconds")))
        return Times(**content)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise ConfigError("times", str(file), f"is no table of times: {error}") from error


class Forwards:
    """A table, asked often."""

    def __init__(self, table: StepTimeTable) -> None:
        self.table = table
        self._lines: dict[int, Callable[[float], float]] = {}

    def seconds(self, rows: float, context: float) -> float:
        return self.line(context)(rows)

    def line(self, context: float) -> Callable[[float], float]:
        """By rows alone."""
        step = int(context) // CONTEXT_STEP
        line = self._lines.get(step)
        if line is None:
            line = self._lines[step] = self.table.behind((step + 0.5) * CONTEXT_STEP)
        return line
