"""`python -m tests.fuzz [--inputs 10000] [--seed 0]`: exits non-zero for a crash, a hang, an untyped answer."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.end_to_end.clusters import cluster, tiny_folder
from tests.fuzz.campaign import Findings, campaign


async def found(inputs: int, seed: int) -> Findings:
    with tempfile.TemporaryDirectory() as folder:
        model = await asyncio.to_thread(tiny_folder, Path(folder) / "model")
        async with cluster(model, Path(folder) / "logs") as running:
            return await campaign({m.process.name: m.address for m in running.members}, inputs, seed)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    arguments.add_argument("--inputs", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    findings = asyncio.run(found(options.inputs, options.seed))
    for answer, count in findings.answers.most_common():
        print(f"{count:6} {answer}")
    print(f"{findings.answers.total()} inputs, {len(findings.faults)} faults", *findings.faults[:20], sep="\n")
    sys.exit(bool(findings.faults))


if __name__ == "__main__":
    main()
