"""The models that benchmarks run on."""

from __future__ import annotations

import subprocess
import sys


def prepared(name: str) -> str:
    """The folder of a model: a folder, a hub name, a GGUF file, or `smollm2`."""
    command = [sys.executable, "-m", "specdec.lm.prepare", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]
