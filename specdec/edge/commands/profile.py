"""`specdec profile`: alpha, costs and speed of every drafter, over prompts and temperatures, and what to use."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from protos.generation_pb2 import ServiceInfo
from specdec.core.errors import ConfigError, SpecdecError
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster
from specdec.edge.commands import up
from specdec.edge.foreground import run_foreground
from specdec.edge.profile.cells import Cell, cells, recommendation
from specdec.edge.profile.measuring import Run, measured, most_draft_tokens
from specdec.edge.profile.picture import check_picture, draw_picture
from specdec.edge.profile.prompts import BUILT_IN, read_prompts
from specdec.edge.profile.report import table, write_json

HELP = "what each drafter is worth here, and the configuration to use"
WIDTH = 160  # of the table where it goes into a file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        help="a coordinator that runs, host:port (its drafters with --suffix-shared false, or suffix knows the "
        "answers of the configurations before); unset: a cluster of its own, as below",
    )
    parser.add_argument("--prompts", type=Path, help=".jsonl or text file; unset: built-in prompts of four domains")
    parser.add_argument("--temperatures", default="0,0.6,1", help="comma separated")
    parser.add_argument("--only", help="drafters, comma separated; unset: all that are served")
    parser.add_argument("--k", default="2,4,8", help="draft tokens tried with drafters of chains")
    parser.add_argument("--nodes", default="8,24,59", help="draft tokens tried with drafters of trees")
    parser.add_argument("--max-tokens", type=int, default=64, help="of one answer")
    parser.add_argument("--rounds", type=int, default=1, help="over all prompts and configurations")
    parser.add_argument("--quick", action="store_true", help="one prompt of each domain, short answers, one k")
    parser.add_argument("--json", type=Path, help="write the profile there; `coordinator --profile` reads it")
    parser.add_argument("--picture", type=Path, help="draw it there, .png or .svg")
    up.add_arguments(parser)
    parser.set_defaults(port=0)


def run(arguments: argparse.Namespace) -> int:
    """Checks everything before anything is started. Raises ConfigError."""
    plan = planned(arguments)
    for file in (arguments.json, arguments.picture):
        if file is not None and not file.parent.is_dir():
            raise ConfigError("json" if file is arguments.json else "picture", str(file), "its folder does not exist")
    if arguments.picture is not None:
        check_picture(arguments.picture)
    return run_foreground(_profile(arguments, plan))


def planned(arguments: argparse.Namespace) -> Run:
    """Its drafters are those asked for, () for all. Raises ConfigError."""
    prompts = BUILT_IN if arguments.prompts is None else read_prompts(arguments.prompts)
    chains, trees = _whole(arguments.k, "k"), _whole(arguments.nodes, "nodes")
    for name in ("max_tokens", "rounds"):
        if getattr(arguments, name) < 1:
            raise ConfigError(name, getattr(arguments, name), "must be at least 1")
    max_tokens = arguments.max_tokens
    if arguments.quick:
        prompts = tuple({prompt.domain: prompt for prompt in reversed(prompts)}.values())[::-1]
        chains, trees, max_tokens = chains[len(chains) // 2 :][:1], trees[len(trees) // 2 :][:1], min(32, max_tokens)
    only = tuple(name for name in (arguments.only or "").split(",") if name)
    return Run(prompts, _temperatures(arguments.temperatures), only, chains, trees, max_tokens, arguments.rounds)


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        raise ConfigError("temperatures", text, "give numbers from 0, comma separated")
    return values


def _whole(text: str, name: str) -> tuple[int, ...]:
    try:
        values = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(1 <= value <= 255 for value in values):
        raise ConfigError(name, text, "give whole numbers from 1 to 255, comma separated")
    return values


async def _profile(arguments: argparse.Namespace, plan: Run) -> int:
    console = Console(stderr=True, highlight=False)
    if arguments.address is not None:
        found, setting = await _measure(console, arguments.address, plan)
    else:
        # The same prompts come with every configuration: no drafter may know the answers of another one.
        os.environ.setdefault("SUFFIX_SHARED", "false")
        spec = await up.cluster_spec(arguments)
        with ExitStack() as stack:
            folder = up.log_folder(arguments.log_folder, stack)
            async with Cluster(spec, folder, lambda line: console.print(line, markup=False)) as cluster:
                found, setting = await cluster.guard(_measure(console, cluster.address, plan))
    _show(arguments, found, setting)
    return 0


async def _measure(console: Console, address: str, plan: Run) -> tuple[list[Cell], dict[str, Any]]:
    async with Client(address) as client:
        info = await client.info()
        limit = most_draft_tokens(info)
        run_ = _with_drafters(plan, info)
        columns = (
            TextColumn("profiling"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        # Drawn seldom: it shares its cores with what is measured.
        with Progress(*columns, console=console, transient=True, refresh_per_second=1) as progress:
            task = progress.add_task("", total=1.0)
            samples = await measured(client, run_, limit, lambda share: progress.update(task, completed=share))
    found = cells(samples, limit)
    if not found:
        raise SpecdecError("no answer was longer than one cycle: give other prompts", reason="PROFILE_EMPTY")
    setting = {"target": info.model_name, "fingerprint": info.model_fingerprint, "dtype": info.dtype}
    return found, {**setting, "max_tokens": run_.max_tokens, "prompts": len(run_.prompts)}


def _with_drafters(plan: Run, info: ServiceInfo) -> Run:
    """Raises ConfigError where a drafter is not served, or where there is none."""
    if not info.speculation_enabled:
        raise ConfigError("address", info.speculation_disabled_reason, "there is nothing to profile without drafters")
    unknown = [name for name in plan.drafters if name not in info.drafters]
    if unknown:
        raise ConfigError("only", ",".join(unknown), f"not served: choose from {', '.join(info.drafters)}")
    return replace(plan, drafters=plan.drafters or tuple(info.drafters))


def _show(arguments: argparse.Namespace, found: list[Cell], setting: dict[str, Any]) -> None:
    title = f"{setting['target']}, {setting['dtype']}"
    out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    out.print(table(found, title))
    out.print(recommendation(found), soft_wrap=True)
    if arguments.json is not None:
        arguments.json.write_text(write_json(found, setting), encoding="utf-8")
    if arguments.picture is not None:
        draw_picture(found, title, arguments.picture)
