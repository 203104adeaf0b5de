"""Running a command that must tidy up after itself, however it is asked to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_foreground(command: Coroutine[Any, Any, int], interrupted: int | None = None) -> int:
    """The command's exit code. Each SIGINT, SIGTERM or SIGHUP cancels it once more, so what it does on the way out
    can be hurried by a second one; the exit code is then `interrupted`, 128 + the signal's number unless given."""
    return asyncio.run(_run(command, interrupted))


async def _run(command: Coroutine[Any, Any, int], interrupted: int | None) -> int:
    task = asyncio.create_task(command)
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0] if interrupted is None else interrupted
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
