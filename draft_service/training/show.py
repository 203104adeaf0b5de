"""Progress on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from draft_service.training.trainer import Report

_SELDOM = 1  # redraws a second: training wants the cores


def _bar(quiet: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), refresh_per_second=_SELDOM, disable=quiet)


def counted(told: str, done: Iterator[int], total: int, quiet: bool) -> None:
    """A bar of tokens, moved by each number that `done` yields; where there is no terminal, a line for every tenth."""
    with _bar(quiet) as bar:
        task = bar.add_task(told, total=total, told="")
        tenths = 0
        for tokens in done:
            bar.update(task, completed=tokens, told=f"{tokens:,} tokens")
            if not bar.console.is_terminal and not quiet and 10 * tokens // total > tenths:
                tenths = 10 * tokens // total
                bar.console.print(f"{told}: {tokens:,} of {total:,} tokens")


@contextmanager
def trained(told: str, quiet: bool) -> Iterator[Callable[[Report], None]]:
    """A bar of a run, and a line for each of its evaluations."""
    with _bar(quiet) as bar:
        task = bar.add_task(told, total=1.0, told="")

        def tell(report: Report) -> None:
            position = report.position
            rate = position.tokens / max(1e-9, position.seconds)
            status = f"step {position.step}, loss {report.loss:.3f}, {rate:,.0f} judged tokens/s"
            bar.update(task, completed=report.progress, told=status)
            if report.evaluation is not None and not quiet:
                alphas = " ".join(f"{alpha:.3f}" for alpha in report.evaluation.alpha)
                bar.console.print(f"step {position.step}: alpha {alphas}, loss {report.loss:.3f}, {rate:,.0f} tokens/s")

        yield tell
