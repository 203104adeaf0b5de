"""`specdec key`: a new bearer key for one caller of a coordinator."""

from __future__ import annotations

import argparse
import sys

from specdec.core.errors import InvalidArgument
from specdec.edge.api_key import NAME, NAMES, hashed, new_key

HELP = "a new key for a caller, and its line for the coordinator's key file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the caller: in the key file, its refusals and its sessions")
    parser.add_argument("--max-streams", type=int, help="calls that it may have running at a time")
    parser.add_argument("--tokens-per-minute", type=int, help="prompt and output tokens that it may use")
    parser.epilog = "The line goes to standard output, the key itself to standard error: it is kept nowhere."


def run(arguments: argparse.Namespace) -> int:
    if not NAME.fullmatch(arguments.name):
        raise InvalidArgument("name", arguments.name, f"give {NAMES}")
    limits = {name: getattr(arguments, name) for name in ("max_streams", "tokens_per_minute")}
    for name, value in limits.items():
        if value is not None and value < 1:
            raise InvalidArgument(name, value, "give at least 1")
    key = new_key()
    words = [f"{name}={value}" for name, value in limits.items() if value is not None]
    print(arguments.name, f"sha256:{hashed(key).hex()}", *words)
    print(f"The key of {arguments.name}: {key}", file=sys.stderr)
    return 0
