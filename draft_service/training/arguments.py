"""The command line of `specdec train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from draft_service.training.losses import LOSSES

KINDS = {
    "distill": "a draft LM: some of the target's layers, taught the target's law",
    "medusa": "Medusa heads on the target's last hidden state",
    "eagle": "an EAGLE head, which continues the target's hidden states",
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="specdec train", description="Drafts for a model of your own.")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    write = _command(commands, "write", "let the target write what drafts learn from")
    write.add_argument("--tokens", type=int, default=2_000_000, help="the file holds this many at the end")
    write.add_argument("--out", type=Path, help="JSONL, appended to; by default in the cache folder")
    write.add_argument("--streams", type=int, default=96, help="conversations at a time")
    ids = _command(commands, "head-ids", "the ids that the target's outputs use most, for a smaller head")
    ids.add_argument("--size", type=int, default=16384, help="how many ids")
    ids.add_argument("--tokens", type=int, help="of the data; all by default")
    ids.add_argument("--data", type=Path, help="what `write` made, or .txt, or JSONL of chats or texts")
    ids.add_argument("--out", type=Path, required=True, help="a .json file")
    for kind, told in KINDS.items():
        _training(_command(commands, kind, told), kind)
    return top


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, told: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=told, description=told, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    command.add_argument("--target", default="smollm2", help="folder, hub name, .gguf file, or smollm2")
    command.add_argument("--dtype", default="bfloat16", help="in which the target computes")
    command.add_argument("--device", default="cpu", help="of the target: cpu or cuda")
    command.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    return command


def _training(command: argparse.ArgumentParser, kind: str) -> None:
    add = command.add_argument
    add(
        "--data",
        type=Path,
        help="what `write` made, or .txt, or JSONL of chats or texts; by default what `write` makes",
    )
    add("--out", type=Path, required=True, help="the draft folder to write")
    add("--steps", type=int, help="at most")
    add("--minutes", type=float, help="of training, at most; features and data are not counted")
    add("--row-tokens", type=int, default=512 if kind == "distill" else 256, help="tokens of a row")
    add("--batch", type=int, default=8, help="rows of a step, of all processes together")
    add("--rate", type=float, default={"distill": 4e-4, "medusa": 1e-3, "eagle": 6e-4}[kind], help="learning rate")
    add("--warm-up", type=int, default=50, help="steps")
    add("--loss", choices=LOSSES, default="kl", help="at the beginning")
    add("--end-loss", choices=LOSSES, default="kl+tv", help="towards the end")
    add("--switch", type=float, default=0.6, help="share of the run after which the end's loss takes over")
    add("--head-size", type=int, default=16384, help="ids that it drafts from, the most frequent ones; 0: all")
    add("--head-ids", type=Path, help="a file of `head-ids`, in place of --head-size")
    add("--every", type=int, default=100, help="steps between evaluations, each with a checkpoint")
    add("--eval-tokens", type=int, default=8192, help="held-out tokens of an evaluation")
    add("--final-eval-tokens", type=int, default=32768, help="of the last one, which goes into the card")
    add("--max-tokens", type=int, default=1024, help="longest document")
    add("--cache-gb", type=float, default=12.0, help="hidden states that may be kept on disk")
    add("--run-folder", type=Path, help="checkpoint and curve; by default in the cache folder")
    add("--fresh", action="store_true", help="do not go on with the run that lies there")
    add("--bf16", action="store_true", help="store weights in bfloat16 instead of int8 rows")
    add("--float32", action="store_true", help="train with float32 products, for machines without fast bfloat16")
    if kind == "distill":
        add(
            "--layers",
            type=_numbers,
            help="of the target, counted from 0, to begin as; by default --num-layers, spread",
        )
        add("--num-layers", type=int, default=3, help="layers of the draft")
    if kind == "medusa":
        add("--heads", type=int, default=4, help="one per draft token")
    if kind == "eagle":
        add("--layers", type=_numbers, help="of the target whose states are read, counted from 1; by default the last")
        add("--unroll", type=int, default=2, help="passes on own outputs, after the one on the target's states")
        add("--feature-weight", type=float, default=0.0, help="of the distance between states, against the loss")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
