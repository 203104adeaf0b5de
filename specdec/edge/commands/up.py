"""`specdec up`: a local cluster in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from specdec.core.errors import ConfigError
from specdec.edge.cluster import Cluster, ClusterSpec
from specdec.edge.config import redact
from specdec.edge.draft_entries import HELP as HELP_OF_DRAFT
from specdec.edge.draft_entries import draft_entries
from specdec.edge.foreground import run_foreground
from specdec.edge.model_folder import model_folder

DTYPES = ("float32", "bfloat16", "int8")
HELP = "a whole cluster on this machine, in the foreground"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="smollm2", help="model folder, hub name, .gguf file, or smollm2 (default)")
    parser.add_argument("--draft", default="ngram", help=HELP_OF_DRAFT)
    parser.add_argument(
        "--head-ids", help="ids that lm and self can draft: first:N, a file of ids, all; unset: the draft folder's own"
    )
    parser.add_argument(
        "--tli", action="store_true", help="lm may have another tokenizer: it drafts the tokens that both have"
    )
    parser.add_argument("--drafters", type=int, default=1, help="drafter processes")
    parser.add_argument("--verifiers", type=int, default=1, help="verifier processes")
    parser.add_argument(
        "--store", default="memory://", help="sessions: memory://, redis://, rediss://, redis+sentinel://, "
        "redis+cluster://"
    )  # fmt: skip
    parser.add_argument(
        "--kv-store", help="keys and values that verifiers share: redis:// and so on; unset: each keeps its own"
    )
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument(
        "--draft-dtype", choices=DTYPES, help="of draft models, whose rounding changes no output; unset: int8 on CPU"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1; unset: the services' own default")
    parser.add_argument("--threads", type=int, help="of each model on CPU; unset: one per core that it may use")
    parser.add_argument("--port", type=int, default=50050, help="coordinator's gRPC port; 0: any free one")
    parser.add_argument("--metrics-port", type=int, default=0, help="coordinator's /metrics port; 0: any free one")
    parser.add_argument(
        "--log-folder", type=Path, help="a log per process; unset: a temporary folder, removed after a clean end"
    )
    parser.epilog = (
        "Other settings of the processes come from the environment, under the names that "
        "`python -m coordinator --help` (draft_service, target_service) lists."
    )


def run(arguments: argparse.Namespace) -> int:
    """Ctrl-C and SIGTERM are how it is meant to end: exit code 0."""
    return run_foreground(_up(arguments), interrupted=0)


async def _up(arguments: argparse.Namespace) -> int:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    spec = await cluster_spec(arguments)
    with ExitStack() as stack:
        folder = log_folder(arguments.log_folder, stack)
        console.print(f"[dim]logs: {folder}[/]")
        async with Cluster(spec, folder, lambda line: console.print(line, markup=False)) as cluster:
            console.print(_how_to_use(cluster), markup=False)
            await cluster.guard(asyncio.Event().wait())
    raise AssertionError("it waits for ever")


async def cluster_spec(arguments: argparse.Namespace) -> ClusterSpec:
    """Makes the models ready. Raises ConfigError."""
    for name in ("drafters", "verifiers"):
        if not 1 <= getattr(arguments, name) <= 64:
            remedy = "must be from 1 to 64" + ("; --draft none for no drafts" if name == "drafters" else "")
            raise ConfigError(name, getattr(arguments, name), remedy)
    if arguments.threads is not None and arguments.threads < 1:
        raise ConfigError("threads", arguments.threads, "must be at least 1")
    target = await model_folder(arguments.target)
    draft = await draft_entries(arguments.draft, target)
    for name, value, who in (("head_ids", arguments.head_ids, {"lm", "self"}), ("tli", arguments.tli, {"lm"})):
        if value and not who & set(draft.names):
            raise ConfigError(name, value, f"is for drafts by {' or '.join(sorted(who))}: see --draft")
    return ClusterSpec(
        target=target,
        draft=draft,
        drafters=0 if arguments.draft == "none" else arguments.drafters,
        verifiers=arguments.verifiers,
        store=arguments.store,
        kv_store=arguments.kv_store,
        dtype=arguments.dtype,
        draft_dtype=arguments.draft_dtype,
        head_ids=arguments.head_ids,
        tli=arguments.tli,
        device=arguments.device,
        threads=arguments.threads,
        port=arguments.port,
        metrics_port=arguments.metrics_port,
    )


def log_folder(asked: Path | None, stack: ExitStack) -> Path:
    """The folder asked for, made if need be; else a temporary one, which goes when the stack ends without an error."""
    if asked is not None:
        asked.mkdir(parents=True, exist_ok=True)
        return asked
    folder = Path(tempfile.mkdtemp(prefix="specdec-"))

    def remove_unless_failed(kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, Exception):
            shutil.rmtree(folder, ignore_errors=True)

    stack.push(remove_unless_failed)
    return folder


def _how_to_use(cluster: Cluster) -> str:
    own = "" if cluster.address == "127.0.0.1:50050" else f" --address {cluster.address}"
    command = f"{sys.executable} -m specdec"
    lines = [
        "",
        f"Ready. Sessions in {redact(cluster.spec.store)}. Ctrl-C stops everything.",
        f'  {command} generate{own} "Once upon a time" --max-tokens 64 --stats',
        f"  {command} chat{own}",
        "Metrics:",
        *(f"  {member.metrics_url}  {member.process.name}" for member in cluster.members),
    ]
    return "\n".join(lines)
