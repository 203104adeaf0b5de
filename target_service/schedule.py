"""Who gets how many rows of the next forward."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.core.step_time import StepTimeTable, most_rows
from target_service.step_time import StepTimes

SATURATED = 0.9  # share of the best rows a second with which a token budget is content
# A forward with a piece of a prompt takes at most this many plain ones, or this many seconds if that is longer: about
# as long as nobody minds between two tokens (20 a second are read no faster). Less would cut prompts into pieces that
# cost their session more than they spare the others.
STEP_MULTIPLE, STEP_SECONDS = 3.0, 0.05
LEAST_CHUNK = 16  # rows that prompts get in any forward, whatever it takes: they go on, and so few cost little
COMPANY = 1.0  # seconds for which a session that had short work is expected back: between two cycles it drafts


@dataclass(frozen=True, slots=True)
class Work:
    """One job: rows that it needs, rows that its session holds, and whether an earlier forward has served part of
    it."""

    rows: int
    held: int
    begun: bool = False


class Schedule:
    """budget: rows of one forward; whole: rows of a whole verification. What needs no more than those is short work.
    target: seconds at most of a forward that serves a piece of a prompt beside short work, None: `default_target`."""

    def __init__(
        self,
        budget: int,
        whole: int,
        times: StepTimes | None = None,
        target: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self.times = times or StepTimes()
        self._target = target
        assert target is None or self.times.measured, "a target in seconds needs forwards measured in seconds"
        self._whole = whole
        self._clock = clock
        self._company_until = -1.0

    @property
    def step_target(self) -> float | None:
        """Seconds, as things are now; None where nothing was measured."""
        return (self._target or default_target(self.times)) if self.times.measured else None

    def share(self, jobs: Sequence[Work]) -> list[int]:
        """Rows for each job, in the order given: who has waited longest comes first.

        While short sessions run, all prompts together get what keeps the forward within the target; a prompt without
        company may fill the budget."""
        is_prompt = [job.begun or job.rows > self._whole for job in jobs]
        prompts = [job for job, long in zip(jobs, is_prompt, strict=True) if long]
        short = [job for job, long in zip(jobs, is_prompt, strict=True) if not long]
        now = self._clock()
        if short:
            self._company_until = now + COMPANY
        allowance = self._allowance(short, prompts) if prompts and now < self._company_until else self.budget
        return share_rows([job.rows for job in jobs], self.budget, self._whole, is_prompt, allowance)

    def prefill_seconds(self, rows: int, held: int) -> float:
        """Of computing so many rows behind `held` others, without company; infinity where nothing was measured."""
        if not self.times.measured:
            return math.inf
        whole, rest = divmod(rows, self.budget)
        context = held + rows / 2
        seconds = whole * self.times.table.estimate(self.budget, context)
        return seconds + (self.times.table.estimate(rest, context) if rest else 0.0)

    def observe(self, jobs: Sequence[Work], rows: Sequence[int], seconds: float) -> None:
        """A forward of these rows of these jobs took so long."""
        self.times.observe(sum(rows), _mean_context(jobs, rows), seconds)

    def _allowance(self, short: Sequence[Work], prompts: Sequence[Work]) -> int:
        """Rows for all prompts together. Rows behind a longer context cost more, so fewer fit."""
        table, budget = self.times.table, self.budget
        target = self._target or default_target(self.times)
        needed = [job.rows for job in short]
        taken, context = min(sum(needed), budget), _mean_context(short, needed)
        held = sum(job.held for job in prompts) / len(prompts)

        def fits(rows: int) -> bool:
            mean = (taken * context + rows * held) / (taken + rows)
            return table.estimate(taken + rows, mean) <= target

        return max(min(LEAST_CHUNK, budget), most_rows(budget, fits))


def tuned_budget(table: StepTimeTable, whole: int) -> int:
    """The rows from which on larger forwards bring little more rows a second, and at least `whole`."""
    return max(whole, table.saturating_rows(SATURATED))


def default_target(times: StepTimes) -> float:
    """In the table's unit, which is the second only where it was measured."""
    table = times.table
    plain = STEP_MULTIPLE * table.estimate(1, table.contexts[0])
    return max(plain, STEP_SECONDS) if times.measured else plain


def share_rows(
    needs: Sequence[int],
    budget: int,
    whole: int,
    prompts: Sequence[bool] | None = None,
    allowance: int | None = None,
) -> list[int]:
    """Rows for each job, in the order given (who has waited longest comes first), their sum at most `budget`.

    A job first gets what it needs up to an equal share of the budget, but no less than `whole`, the rows of a
    whole verification: short jobs are served at once, however long a prefill stands before them, and a tree
    is not cut for the sake of equality. What is left goes to the jobs in the same order. Those that `prompts` marks get
    at most `allowance` together. The first job always gets something, so if those that got nothing come first next
    time, nobody starves."""
    if not needs:
        return []
    limited = prompts or [False] * len(needs)
    left, prompts_left = budget, budget if allowance is None else allowance
    assert left > 0 and prompts_left > 0 and min(needs) > 0, "a job without rows, or no budget"
    given = [0] * len(needs)
    for most in (max(budget // len(needs), whole), budget):
        for i, need in enumerate(needs):
            rows = min(need - given[i], most, left)
            if limited[i]:
                rows = min(rows, prompts_left)
                prompts_left -= rows
            given[i] += rows
            left -= rows
    return given


def _mean_context(jobs: Sequence[Work], rows: Sequence[int]) -> float:
    """Rows held before a row, on average over the rows."""
    total = sum(rows)
    return sum(job.held * n for job, n in zip(jobs, rows, strict=True)) / total if total else 0.0
