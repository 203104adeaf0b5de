"""The side of a subject: one JSON command a line on standard input, one JSON answer a line on standard output.

Standard library only, for each peer runs in an environment of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
Handlers = Mapping[str, Callable[..., dict[str, Any]]]


def serve(load: Callable[[], Handlers], pids: Callable[[], Iterable[int]] = lambda: ()) -> None:
    """Loads, says {"ready": true, "libraries": bytes before that} and answers {"do": name, ...} with what the handler
    of that name returns for the other fields, until the input ends. An exception becomes {"error": text}. `memory`
    is answered for all that do not handle it: peak resident bytes of this process and of `pids`.

    Whatever a library prints to standard output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def memory() -> dict[str, Any]:
        return {"peak": sum(peak_memory(pid) for pid in (os.getpid(), *pids()))}

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")

    libraries = peak_memory(os.getpid())
    handlers: Handlers = {"memory": memory, **load()}
    answer({"ready": True, "libraries": libraries})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(handlers[command.pop("do")](**command))
        except Exception as error:  # the driver decides what a failed measurement means
            answer({"error": f"{type(error).__name__}: {error}"})


def die_with_parent() -> None:
    """To be called in a child before it executes: the kernel then kills it when its parent dies, even if it is
    stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def peak_memory(pid: int) -> int:
    """The most bytes that the process had in memory so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
