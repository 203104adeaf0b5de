"""The command line, `specdec` or `python -m specdec`. Each command is a module with HELP, add_arguments and run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from specdec.core.errors import InvalidArgument, SpecdecError, Unavailable
from specdec.edge.commands import chat, demo, generate, key, plan, profile, train, up


class Command(Protocol):
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


COMMANDS: dict[str, Command] = {
    "up": up,
    "generate": generate,
    "chat": chat,
    "plan": plan,
    "profile": profile,
    "train": train,
    "demo": demo,
    "key": key,
}
FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, 2 asked for something impossible, 128 + n ended by signal n."""
    parser = argparse.ArgumentParser(prog="specdec", description="Distributed speculative decoding.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.HELP, description=command.HELP, allow_abbrev=False)
        command.add_arguments(one)
    arguments = parser.parse_args(argv)
    try:
        return COMMANDS[arguments.command].run(arguments)
    except SpecdecError as error:
        print(f"specdec {arguments.command}: {error}{_hint(error, arguments)}", file=sys.stderr)
        return MISUSED if isinstance(error, InvalidArgument) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _hint(error: SpecdecError, arguments: argparse.Namespace) -> str:
    if isinstance(error, Unavailable) and "address" in arguments:
        return f" (asked {arguments.address}; `specdec up` starts a coordinator)"
    return ""
