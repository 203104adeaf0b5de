"""A child process: its output in a file, its end never overlooked, its life no longer than ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from specdec.core.errors import SpecdecError
from specdec.edge.cores import Cores

LAUNCHER = Path(__file__).with_name("launch.py")
LOG_LINES = 12  # of a failed process, shown with its failure


class ProcessFailed(SpecdecError):
    """A child ended though nobody asked it to, or never became ready."""

    reason = "PROCESS_FAILED"


class ChildProcess:
    """`python -m <module> <arguments>` on `cores`, with `environment` on top of ours."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log_file: Path,
        cores: Cores,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.log_file = log_file
        # -P: a folder of the same name where the user happens to stand is not ours.
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._cores = cores
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}

    async def start(self) -> None:
        cores = ",".join(str(core) for core in self._cores)
        launch = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), cores]
        with self.log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *launch,
                *self._command,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches the whole foreground group; only the parent may hear it, it stops in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run_to_its_end(self) -> NoReturn:
        """Raises ProcessFailed when the process ends: before `stop`, any end is a failure."""
        raise self.failure(f"{self.name} {_how(await self._process.wait())}")

    def failure(self, sentence: str) -> ProcessFailed:
        """The sentence with the last lines of the log, which usually say why."""
        lines = self.log_file.read_text(errors="replace").splitlines()[-LOG_LINES:]
        tail = "".join(f"\n  {line}" for line in lines) or " nothing"
        return ProcessFailed(f"{sentence}; the last lines of {self.log_file}:{tail}")

    async def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds, or at once when cancelled. Returns when it is gone."""
        try:
            self._signal(signal.SIGTERM)
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _how(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"
