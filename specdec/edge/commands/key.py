"""`specdec key`: a new bearer key for one caller of a coordinator."""

from __future__ import annotations

import argparse
import hashlib
import re
import secrets
import sys

from specdec.core.errors import InvalidArgument

HELP = "a new key for a caller, and its line for the coordinator's key file"
PREFIX = "specdec-"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the caller: in the key file, its refusals and its sessions")
    parser.add_argument("--max-streams", type=int, help="calls that it may have running at a time")
    parser.add_argument("--tokens-per-minute", type=int, help="prompt and output tokens that it may use")
    parser.epilog = "The line goes to standard output, the key itself to standard error: it is kept nowhere."


def run(arguments: argparse.Namespace) -> int:
    if not _NAME.fullmatch(arguments.name):
        raise InvalidArgument("name", arguments.name, "give 1 to 64 letters, digits, dots, dashes, underscores")
    limits = {name: getattr(arguments, name) for name in ("max_streams", "tokens_per_minute")}
    for name, value in limits.items():
        if value is not None and value < 1:
            raise InvalidArgument(name, value, "give at least 1")
    key = PREFIX + secrets.token_urlsafe(32)
    words = [f"{name}={value}" for name, value in limits.items() if value is not None]
    print(arguments.name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", *words)
    print(f"The key of {arguments.name}: {key}", file=sys.stderr)
    return 0
