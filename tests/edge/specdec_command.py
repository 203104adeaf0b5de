"""`specdec` as a user runs it: a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

PIPE = asyncio.subprocess.PIPE


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "specdec", *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def specdec(*arguments: str, stdin: str = "") -> Ended:
    async with running(*arguments) as process:
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None, "it has ended"
        return Ended(process.returncode, out.decode(), err.decode())
