"""Forwards of our native network as it is compiled for kinds of processors, of all that this one can stand for, beside
torch's own matrices (`lean`) on the same cores.

    python -m benchmarks.processors [--model smollm2] [--dtypes float32,bfloat16,int8] [--rows 1,8,32] [--context 128]
        [--kinds avx512,avx2] [--rounds 7] [--json FILE]

A kind is one of `specdec/lm/native/prebuilt.py`. Medians of the seconds of a forward; subjects take turns, a forward
each, in processes of their own, since a library is loaded once."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import cast

import numpy as np

from benchmarks.models import prepared
from benchmarks.report import Row, parser, report
from specdec.lm.native import library
from specdec.lm.native.prebuilt import CPU_INFO, KINDS, cpu_features
from specdec.lm.networks import Dtype

TORCH = "torch"
WARM = 2  # forwards of each size before any is counted


class Subject:
    """A child process with one model."""

    def __init__(self, exits: ExitStack, name: str, folder: str, dtype: str, context: int) -> None:
        command = [sys.executable, "-P", "-m", "benchmarks.processors", "--serve", name, folder, dtype, str(context)]
        self._process = exits.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        exits.callback(self._process.terminate)

    def step(self, rows: int) -> float:
        """Seconds of a forward of so many rows behind the context."""
        assert self._process.stdin and self._process.stdout, "both are pipes"
        print(rows, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def serve(name: str, folder: str, dtype: str, context: int) -> None:
    """One line with rows in, one with seconds out."""
    if name != TORCH:
        library.FLAGS = next(kind for kind in KINDS if kind.name == name).compiler_flags
    import time

    from specdec.lm.loading import load_model
    from specdec.lm.runner import Runner, Segment

    network = "lean" if name == TORCH else "native"
    runner = Runner(load_model(folder, dtype=cast(Dtype, dtype), device="cpu", network=network), context + 512)
    ids = np.random.default_rng(0).integers(0, 1000, context + 512).astype(np.uint32)
    sequence = runner.new_sequence()
    runner.forward([Segment(sequence, ids[:context], wanted=1)])
    for line in sys.stdin:
        rows = int(line)
        begun = time.perf_counter()
        runner.forward([Segment(sequence, ids[context : context + rows], wanted=rows)])
        seconds = time.perf_counter() - begun
        sequence.rewind(ids[:context])
        print(seconds, flush=True)


def measured(options: argparse.Namespace, kinds: Sequence[str]) -> list[Row]:
    folder, sizes = prepared(options.model), [int(rows) for rows in options.rows.split(",")]
    found = []
    for dtype in options.dtypes.split(","):
        with ExitStack() as exits:
            subjects = {name: Subject(exits, name, folder, dtype, options.context) for name in (TORCH, *kinds)}
            for rows in sizes:
                times: dict[str, list[float]] = {name: [] for name in subjects}
                for number in range(WARM + options.rounds):
                    for name, subject in subjects.items():
                        seconds = subject.step(rows)
                        if number >= WARM:
                            times[name].append(1e3 * seconds)
                middle = {name: median(one) for name, one in times.items()}
                measure = f"{dtype}, rows {rows}"
                found += [Row(measure, kind, middle[kind], "ms", TORCH, middle[TORCH]) for kind in kinds]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--dtypes", default="float32,bfloat16,int8")
    arguments.add_argument("--rows", default="1,8,32")
    arguments.add_argument("--context", type=int, default=128)
    arguments.add_argument("--kinds", help="comma separated; unset: all that this processor can stand for")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.serve:
        name, folder, dtype, context = options.serve
        serve(name, folder, dtype, int(context))
        return
    features = cpu_features(CPU_INFO.read_text())
    able = [kind.name for kind in KINDS if kind.needs <= features]
    rows = measured(options, options.kinds.split(",") if options.kinds else able)
    report("Forwards by kind of processor", rows, options.json)


if __name__ == "__main__":
    main()
