"""What speculation gains, over the real three processes on loopback, bfloat16.

    python -m benchmarks.speculation [--bed pair|smollm2] [--draft NAME,..] [--drafters NAME,..] [--quick] [--json FILE]
        [--peers [transformers,vllm,llamacpp]] [--rounds N]     the table: ours beside our target-only and all peers
        --rtt [--drafter NAME]          a longer line to the drafter: the planner beside every fixed k
        --sessions 8,32                 many sessions at once: auto beside target-only
        --trees                         an EAGLE-2 tree beside the same head's chain: mean acceptance length
        --alpha | --block | --steps     laws and steps of target and draft alone, in one process, temperature 1

The table is greedy. What is measured takes turns within one run, each subject stopped while another one runs. Values
are medians of rounds, over all prompts or those of one domain; ratios are value over baseline. One cluster of ours
serves every drafter, and each request names the one it wants. All peers of the pair at once need 24 GB of memory: name
some of them where there is less, such as `vllm:draft` alone."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from benchmarks import speculation_links, speculation_offline, speculation_table, speculation_trees
from benchmarks.report import Row, parser, report
from benchmarks.speculation_beds import BEDS, PAIR_BED, Prepared, Question, prepare_bed, quick
from benchmarks.speculation_lineup import PEER_NAMES
from specdec.core.errors import ConfigError
from specdec.lm.networks import Dtype

ROUNDS, QUICK_TOKENS = 3, 24
SEED = 1


def add_flags(arguments: argparse.ArgumentParser) -> None:
    arguments.add_argument("--bed", default=PAIR_BED.name, choices=tuple(BEDS))
    arguments.add_argument("--draft", help="as of `specdec up`, in place of the bed's own")
    arguments.add_argument("--drafters", default="", help="ours in the table, comma separated; unset: all served")
    arguments.add_argument("--peers", nargs="?", default="", const=",".join(PEER_NAMES), help="which, or all")
    arguments.add_argument("--rounds", type=int, help=f"unset: {ROUNDS}, or 1 with --quick")
    arguments.add_argument("--tokens", type=int, help="new tokens of an answer; unset: the bed's")
    arguments.add_argument("--prompts", type=Path, help="file of your own prompts, one a line, in place of the bed's")
    arguments.add_argument("--drafter", default="", help="of --rtt; unset: auto")
    arguments.add_argument("--trips", default="", help="of --rtt, seconds, comma separated; unset: 0 to 0.05")
    arguments.add_argument("--draft-model", help="of --alpha, --block and --steps: a model or draft folder")
    arguments.add_argument("--draft-dtype", default="int8", choices=("float32", "bfloat16", "int8"))
    arguments.add_argument("--head-ids", default="first:16384", help="a cut head, for --alpha and --steps")
    arguments.add_argument("--answers", type=int, default=2, help="of each prompt, for --alpha and --block")
    modes = arguments.add_mutually_exclusive_group()
    modes.add_argument("--rtt", action="store_true")
    modes.add_argument("--sessions", help="such as 8,32")
    for name in ("trees", "alpha", "block", "steps"):
        modes.add_argument(f"--{name}", action="store_true")


def measured(options: argparse.Namespace, prepared: Prepared, logs: Path) -> tuple[str, list[Row]]:
    """Title and rows. Raises ConfigError, SubjectFailed."""
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    if options.rtt:
        grid = speculation_links.QUICK_GRID if options.quick else speculation_links.GRID
        trips = [float(trip) for trip in listed(options.trips)] or speculation_links.ROUND_TRIPS
        return "Round trips to the drafter", speculation_links.round_trips(
            prepared, options.drafter, rounds, logs, grid, trips
        )
    if options.sessions:
        counts = [int(count) for count in listed(options.sessions)]
        return "Many sessions", speculation_links.sessions(prepared, counts, rounds, logs)
    if options.trees:
        return "Trees and chains", speculation_trees.trees(prepared, rounds, logs)
    if options.alpha or options.block or options.steps:
        return offline(options, prepared)
    peers, drafters = listed(options.peers), listed(options.drafters)
    return "Speculation", speculation_table.measured(prepared, peers, drafters, rounds, logs)


def offline(options: argparse.Namespace, prepared: Prepared) -> tuple[str, list[Row]]:
    draft, dtype = options.draft_model or prepared.draft, cast(Dtype, options.draft_dtype)
    answers = 1 if options.quick else options.answers
    if draft is None:
        raise ConfigError("draft_model", None, "name the draft's folder")
    if options.steps:
        rows = speculation_offline.draft_steps(prepared, draft, options.head_ids, 10 if options.quick else 50)
        return "Draft steps", rows
    if options.block:
        return "Block over token rule", speculation_offline.block_over_token(prepared, draft, dtype, answers, SEED)
    rows = speculation_offline.exact_alphas(prepared, draft, dtype, options.head_ids, answers, SEED)
    return "Exact alpha", rows


def listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0])
    add_flags(arguments)
    options = arguments.parse_args(argv)
    bed = BEDS[options.bed]
    if options.prompts is not None:
        lines = options.prompts.read_text(encoding="utf-8").splitlines()
        bed = replace(
            bed, questions=tuple(Question("own", f"prompt {i}", text) for i, text in enumerate(lines, 1) if text)
        )
    if options.quick:
        bed = quick(bed, QUICK_TOKENS)
    if options.draft is not None:
        bed = replace(bed, ours=options.draft)
    if options.tokens is not None:
        bed = replace(bed, new_tokens=options.tokens)
    with tempfile.TemporaryDirectory() as logs:
        title, rows = measured(options, prepare_bed(bed), Path(logs))
    report(f"{title}: {bed.name}, bfloat16, {bed.new_tokens} new tokens", rows, options.json)


if __name__ == "__main__":
    main()
