"""A model spec made a folder, by a process of its own: what converts models imports torch."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from specdec.core.errors import ConfigError


async def model_folder(spec: str) -> str:
    """spec: a folder, a hub name, a .gguf file or `smollm2`. Progress goes to our stderr. Raises ConfigError."""
    command = (sys.executable, "-P", "-m", "specdec.lm.prepare", spec)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        stdout, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    lines = stdout.decode().split("\n")
    if process.returncode != 0 or len(lines) < 2:
        raise ConfigError("model", spec, "could not be made ready, see above")
    return lines[-2]
