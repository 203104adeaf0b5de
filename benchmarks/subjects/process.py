"""The driver's side of a subject: a process group that computes only while it is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.subjects.protocol import die_with_parent

CLOSE_SECONDS = 20.0


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents first; none where it has gone. Linux. Threads that end between being
    listed and being read have no children."""
    children: list[int] = []
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                children += (int(child) for child in (task / "children").read_text().split())
    return [*children, *(below for child in children for below in descendants(child))]


class SubjectFailed(Exception):
    """It died, or answered that it could not; the message carries the end of its log."""


class Subject:
    """Starts the process and waits until it has loaded. Between two commands it and all processes that it started are
    stopped, so that no thread of an idle subject spins beside the one that is measured."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Raises SubjectFailed."""
        self.name = name
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env=os.environ | environment,
            )
        self.libraries = int(self._answer()["libraries"])

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """What it answers. Raises SubjectFailed."""
        assert self._process.stdin is not None, "its input was asked for"
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("died") from None
        return self._answer()

    def close(self) -> None:
        """Ends its processes, all of them and only them."""
        assert self._process.stdin is not None, "its input was asked for"
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None, "its output was asked for"
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "its output was asked for"
        line = self._process.stdout.readline()
        if not line:
            failed = self._failed("died")
            self.close()
            raise failed
        answer: dict[str, Any] = json.loads(line)
        self._signal(signal.SIGSTOP)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def _failed(self, reason: str) -> SubjectFailed:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])
        return SubjectFailed(f"{self.name}: {reason}\n{tail}")

    def _signal(self, number: signal.Signals) -> None:
        """To its group, and to the processes that it started in groups of their own."""
        others = descendants(self._process.pid)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()
