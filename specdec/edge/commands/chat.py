"""`specdec chat`: a conversation with a coordinator, one session over all its turns."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from specdec.core.errors import SpecdecError
from specdec.edge.client import GenerateFields
from specdec.edge.commands.generate import Answer
from specdec.edge.commands.sampling_flags import add_connection, add_sampling, client_of, sampling_fields
from specdec.edge.foreground import run_foreground

HELP = "a conversation, one session over its turns"
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", help="system message")
    parser.add_argument("--session-id", help="an earlier conversation, to go on with")
    add_connection(parser)
    add_sampling(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ctrl-C ends the answer, Ctrl-D the conversation. The exit code is 1 if any turn failed."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and a history
    chat = Chat(arguments)
    failed = False
    while (line := _ask()) is not None:
        if line.strip():
            failed |= run_foreground(chat.turn(line)) not in (0, INTERRUPTED)
    return int(failed)


def _ask() -> str | None:
    """The next message; None at the end of the input."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        if sys.stdin.isatty():
            print()
        return None


class Chat:
    """received: tokens of an answer that was interrupted. The next turn goes on from what its reader saw."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._session_id: str = arguments.session_id or ""
        self._received: int | None = None

    async def turn(self, message: str) -> int:
        arguments = self._arguments
        answer = Answer(stats=arguments.stats)
        try:
            async with client_of(arguments) as client:
                async for event in client.generate(deadline=arguments.timeout, **self._fields(message)):
                    answer.show(event)
                    self._session_id, self._received = answer.session_id, answer.num_tokens
            self._received = None
        except SpecdecError as error:
            print(f"specdec chat: {error}", file=sys.stderr)
            return 1
        finally:
            answer.end()
        return 0

    def _fields(self, message: str) -> GenerateFields:
        fields = sampling_fields(self._arguments)
        first = not self._session_id and self._arguments.system is not None
        system = [{"role": "system", "content": self._arguments.system}] if first else []
        fields["chat"] = [*system, {"role": "user", "content": message}]
        fields["session_id"], fields["received_tokens"] = self._session_id, self._received
        return fields
