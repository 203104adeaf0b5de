"""`specdec demo`, what `make demo` runs: a real cluster, one streamed answer, and what speculation brought."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from protos.generation_pb2 import Chunk
from specdec.core.errors import ConfigError, SpecdecError
from specdec.edge.client import Client, GenerateFields
from specdec.edge.cluster import Cluster, ClusterSpec
from specdec.edge.commands.up import cluster_spec, log_folder
from specdec.edge.comparison import Comparison, compare
from specdec.edge.comparison import run as run_once
from specdec.edge.foreground import run_foreground
from specdec.edge.received import Event
from specdec.edge.terminal import coloured, comparison_table, legend

HELP = "a local cluster, one streamed answer, and a table of what speculation brought"
LIST = """\
1. Wake up at six and feed the cat.
2. Water the tomatoes on the balcony.
3. Cycle to the market and buy bread, cheese and apples.
4. Write a letter to grandmother.
5. Repair the lamp in the kitchen.
6. Read the next chapter of the history book.
7. Cook soup for dinner and invite the neighbours."""
COPY = f"Here is my list for today. Write the whole list again.\n\n{LIST}"
PROSE = "Write a short story about a lighthouse keeper and a storm."
WORKLOADS: dict[str, GenerateFields] = {
    "copying, T=0": {"chat": [{"role": "user", "content": COPY}], "temperature": 0.0, "max_tokens": 160},
    "prose, T=0": {"chat": [{"role": "user", "content": PROSE}], "temperature": 0.0, "max_tokens": 96},
    "prose, T=0.7": {
        "chat": [{"role": "user", "content": PROSE}], "temperature": 0.7, "max_tokens": 96, "seed": 7
    },
}  # fmt: skip


class DemoFailed(SpecdecError):
    """Everything ran, but not as it must."""

    reason = "DEMO_FAILED"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="smollm2", help="as for `specdec up`")
    # No suffix drafter: it would know the answers of the runs before, which is a gain for repeated prompts only.
    parser.add_argument("--draft", default="self:int8", help="as for `specdec up`")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind per prompt")
    # The promise that speculation changes no output is for float32: in bfloat16 a near tie may fall either way.
    parser.set_defaults(
        drafters=1, verifiers=1, store="memory://", kv_store=None, dtype="float32", device=None, threads=None,
        port=0, metrics_port=0,
        draft_dtype=None, head_ids=None, tli=False,
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    if arguments.pairs < 1:
        raise ConfigError("pairs", arguments.pairs, "must be at least 1")
    return run_foreground(_demo(arguments))


async def _demo(arguments: argparse.Namespace) -> int:
    console = Console(highlight=False)
    console.print("[bold]specdec demo[/]: coordinator, drafter and verifier as three processes on this machine")
    console.print("Getting the model ready (converted once, then kept in the cache folder) ...")
    spec = await cluster_spec(arguments)
    with ExitStack() as stack, console.status("starting three processes ...") as status:
        folder = log_folder(None, stack)
        async with Cluster(spec, folder, lambda line: console.print(f"  {line}", markup=False)) as cluster:
            status.stop()
            await cluster.guard(_show(console, cluster, arguments.pairs))
    return 0


async def _show(console: Console, cluster: Cluster, pairs: int) -> None:
    async with Client(cluster.address) as client:
        await _stream_one(console, client)
        comparisons = await _measure(console, client, pairs)
    console.print(_setting(cluster.spec))
    console.print(comparison_table(comparisons))
    _check(console, comparisons)


async def _stream_one(console: Console, client: Client) -> None:
    name, fields = next(iter(WORKLOADS.items()))
    console.print()
    console.print(legend())
    console.print(f"\n[bold]Prompt[/] ({name})\n")
    console.print(COPY, markup=False, style="dim")
    console.print("\n[bold]Answer[/]\n")

    def show(event: Event) -> None:
        if isinstance(event, Chunk):
            console.print(coloured(event), end="", soft_wrap=True)

    await run_once(client, show, **fields)
    console.print("\n")


async def _measure(console: Console, client: Client, pairs: int) -> list[Comparison]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    comparisons = []
    # Drawn seldom: it shares its cores with what is measured.
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task("measuring, with and without speculation by turns", total=2 * pairs * len(WORKLOADS))
        for name, fields in WORKLOADS.items():
            comparisons.append(await compare(client, name, pairs, lambda: progress.advance(task), **fields))
    return comparisons


def _setting(spec: ClusterSpec) -> str:
    layers = f" (first {spec.draft.num_layers} layers)" if spec.draft.num_layers is not None else ""
    draft = f"Drafts by {', '.join(spec.draft.names)}{layers}"
    return f"{draft}; target in {spec.dtype}. tokens/s: medians of whole requests, prompt included."


def _check(console: Console, comparisons: Sequence[Comparison]) -> None:
    differing = [c.name for c in comparisons if not c.identical]
    if differing:
        raise DemoFailed(f"speculation changed the output of: {', '.join(differing)}")
    if all(c.acceptance_rate is None for c in comparisons):
        raise DemoFailed("nothing was drafted: the drafter gave no token to any request")
    console.print(
        "Every output was the same, token for token, with speculation and without: greedy at T=0, and at T=0.7 by "
        "its seed.\nLookups guess for free where the answer repeats what stands before it; elsewhere the draft model "
        "guesses, or nobody does, as the planner measures."
    )
