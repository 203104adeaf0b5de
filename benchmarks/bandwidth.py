"""The limit of whatever reads all weights for every token: how many bytes a second the cores can read from memory.

    python -m benchmarks.bandwidth [--quick] [--json FILE]

A small C program, compiled for this processor on first use. The limit is the best rate over the access patterns it
tries and over the times it was run: nothing can be faster, and a busy neighbour makes it only slower."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Row, parser, report
from specdec.core.errors import ConfigError
from specdec.lm.prepare import models_cache

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-march=native", "-fopenmp")
MEBIBYTES, REPEATS = 1024, 8


def compiled() -> Path:
    """The program, kept in the cache under the hash of its source. Raises ConfigError without a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise ConfigError("CC", os.environ.get("CC", "cc"), "the bandwidth probe needs a C compiler")
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    program = models_cache().parent / "benchmarks" / f"bandwidth-{key}"
    if not program.is_file():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            made = Path(scratch) / "bandwidth"
            subprocess.run([compiler, *FLAGS, "-o", str(made), str(SOURCE)], check=True)
            made.rename(program)
    return program


def bandwidth(mebibytes: int = MEBIBYTES, repeats: int = REPEATS) -> dict[int, float]:
    """Streams per thread -> best bytes a second, all cores of this process together."""
    threads = len(os.sched_getaffinity(0))
    command = [str(compiled()), str(mebibytes), str(threads), str(repeats)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return {int(streams): float(rate) for streams, rate in lines}


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__.splitlines()[0]).parse_args(argv)
    rates = bandwidth(repeats=2 if options.quick else REPEATS)
    best = max(rates.values())
    rows = [
        Row("read bandwidth", f"{streams} streams a thread", rate / 1e9, "GB/s", "best", best / 1e9)
        for streams, rate in rates.items()
    ]
    report("Reading memory", rows, options.json)


if __name__ == "__main__":
    main()
