"""The long form: `python -m tests.chaos [--generations 200]`. Exits non-zero for any token that is wrong, lost or
doubled, for anything left behind, and where too few faults fired in the middle of a stream."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.chaos.disturbed import Outcome, run
from tests.chaos.faults import FAULTS
from tests.chaos.scene import Scene
from tests.end_to_end.clusters import tiny_folder

FIRED = 0.9  # share of the faults


def shown(outcomes: list[Outcome]) -> Table:
    table = Table(title="Disturbed generations, by fault", title_justify="left")
    for name in ("fault", "generations", "mid-stream", "right", "pause, median", "95 %"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for kind in FAULTS:
        mine = [outcome for outcome in outcomes if outcome.kind == kind]
        if mine:
            pauses = [outcome.pause for outcome in mine]
            table.add_row(
                kind,
                str(len(mine)),
                str(sum(outcome.fired for outcome in mine)),
                str(sum(outcome.right for outcome in mine)),
                *(f"{1e3 * np.quantile(pauses, q):.0f} ms" for q in (0.5, 0.95)),
            )
    return table


async def chaos(generations: int, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="specdec-chaos-") as folder:
        model = await asyncio.to_thread(tiny_folder, Path(folder) / "model")
        async with Scene(model, Path(folder)) as scene:
            kinds = [list(FAULTS)[i % len(FAULTS)] for i in range(generations)]
            outcomes = await run(scene, kinds, seed)
            left = await scene.left_behind()
    Console(width=120).print(shown(outcomes))
    fired = sum(outcome.fired for outcome in outcomes)
    wrong = [outcome for outcome in outcomes if not outcome.right]
    print(f"{len(outcomes)} generations, {fired} disturbed mid-stream, {len(wrong)} wrong; left: {left or 'nothing'}")
    return int(bool(wrong or left or fired < FIRED * len(outcomes)))


def main() -> None:
    arguments = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    arguments.add_argument("--generations", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    sys.exit(asyncio.run(chaos(options.generations, options.seed)))


if __name__ == "__main__":
    main()
