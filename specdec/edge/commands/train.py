"""`specdec train`: data, drafts and the ids of their heads. What it runs imports torch, and so is a process of its
own."""

from __future__ import annotations

import argparse
import subprocess
import sys

HELP = "train a draft for a model of your own: data, distilled LM, Medusa heads, EAGLE head"
MODULE = "draft_service.training"
COMMANDS = ("write", "head-ids", "distill", "medusa", "eagle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=COMMANDS, help="each has its own --help")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    # Ctrl-C reaches the whole foreground group; the child ends its checkpoint, and we wait for it.
    with subprocess.Popen([sys.executable, "-P", "-m", MODULE, arguments.what, *arguments.arguments]) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue
