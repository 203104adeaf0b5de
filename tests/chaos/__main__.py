"""The long form: `python -m tests.chaos [--generations 200]`. Exits non-zero for any token that is wrong, lost or
doubled, for anything left behind, and where too few faults fired in the middle of a stream."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.chaos import law
from tests.chaos.disturbed import Outcome, run, soak
from tests.chaos.faults import FAULTS
from tests.chaos.scene import Scene
from tests.end_to_end.clusters import tiny_folder

FIRED = 0.9  # share of the faults
SPREAD = 0.12  # of the model's weights: its laws are far from uniform
ENOUGH = 30  # outputs without a seed before their law is judged
SHARPER = 1.1  # a law that the test must tell from the right one, as an inverse temperature
SOAKED = 48  # generations of a round
MORE_FILES, MORE_BYTES = 8, 4 << 20  # what the second half of a soak may add to a process: sockets and caches breathe


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
        model = await asyncio.to_thread(tiny_folder, Path(folder) / "model", std=SPREAD)
        async with Scene(model, Path(folder)) as scene:
            kinds = [list(FAULTS)[i % len(FAULTS)] for i in range(generations)]
            outcomes = await run(scene, kinds, seed)
            left = await scene.left_behind()
        free = [(outcome.prompt, outcome.ids) for outcome in outcomes if outcome.expected is None and outcome.right]
        judged = len(free) >= ENOUGH
        lawful = await asyncio.to_thread(law.p_value, model, free) if judged else math.nan
        sharper = await asyncio.to_thread(law.p_value, model, free, 1 / SHARPER) if judged else math.nan
    Console(width=120).print(shown(outcomes))
    fired = sum(outcome.fired for outcome in outcomes)
    wrong = [outcome for outcome in outcomes if not outcome.right]
    print(f"{len(outcomes)} generations, {fired} disturbed mid-stream, {len(wrong)} wrong; left: {left or 'nothing'}")
    print(f"{len(free)} without a seed: p {lawful:.3g} that they have the model's law, {sharper:.3g} a sharper one")
    bent = judged and (lawful < law.SUSPICIOUS or sharper > law.SUSPICIOUS)
    return int(bool(wrong or left or bent or fired < FIRED * len(outcomes)))


async def soaked(rounds: int) -> int:
    """Half of all generations are left half-way; of the second half of the rounds nothing may stay."""
    with tempfile.TemporaryDirectory(prefix="specdec-soak-") as folder:
        model = await asyncio.to_thread(tiny_folder, Path(folder) / "model", std=SPREAD)
        async with Scene(model, Path(folder)) as scene:
            seen = []
            for number in range(rounds):
                await soak(scene, SOAKED)
                left = await scene.left_behind()
                seen.append((scene.descriptors(), scene.memory()))
                print(f"round {number + 1}: {sum(seen[-1][0].values())} descriptors, {left or 'nothing'} left")
    middle = rounds // 2
    table = Table(title=f"{rounds} rounds of {SOAKED} generations", title_justify="left")
    for name in ("process", "descriptors, round 1", "middle", "last", "MiB, round 1", "middle", "last"):
        table.add_column(name, justify="left" if name == "process" else "right")
    failed = False
    for name in seen[0][0]:
        files = [seen[i][0][name] for i in (0, middle, -1)]
        bytes_ = [seen[i][1][name] for i in (0, middle, -1)]
        failed |= files[2] > files[1] + MORE_FILES or bytes_[2] > bytes_[1] + MORE_BYTES
        table.add_row(name, *map(str, files), *(f"{size / 2**20:.1f}" for size in bytes_))
    Console(width=120).print(table)
    return int(failed or bool(left))


def main() -> None:
    arguments = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    arguments.add_argument("--generations", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--soak", type=int, default=0, help="rounds of undisturbed generations in place of chaos")
    options = arguments.parse_args()
    work = soaked(options.soak) if options.soak else chaos(options.generations, options.seed)
    sys.exit(asyncio.run(work))


if __name__ == "__main__":
    main()
