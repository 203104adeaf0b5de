"""`specdec generate`: one prompt to a coordinator, the answer streamed to the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console

from protos.generation_pb2 import Chunk, Complete, Started
from specdec.core.errors import InvalidArgument
from specdec.edge.client import GenerateFields
from specdec.edge.commands.sampling_flags import add_connection, add_sampling, client_of, sampling_fields
from specdec.edge.foreground import run_foreground
from specdec.edge.received import Event
from specdec.edge.terminal import coloured, legend, printable, statistics

HELP = "one prompt to a coordinator, the answer streamed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="text; -: standard input; none with --received-tokens")
    parser.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    parser.add_argument("--system", help="system message, with --chat")
    parser.add_argument("--token-ids", action="store_true", help="the prompt is token ids, comma separated")
    parser.add_argument("--session-id", help="an earlier session, to go on with")
    parser.add_argument("--received-tokens", type=int, help="resume the session's turn behind this many")
    parser.add_argument("--n", type=int, help="answers to the one prompt")
    parser.add_argument("--logprobs", type=int, help="show each token's log-probability, and the top L")
    add_connection(parser)
    add_sampling(parser)


def run(arguments: argparse.Namespace) -> int:
    return run_foreground(_generate(arguments))


async def _generate(arguments: argparse.Namespace) -> int:
    fields = sampling_fields(arguments)
    fields.update(_prompt(arguments))
    for name in ("session_id", "received_tokens", "n", "logprobs"):
        fields[name] = getattr(arguments, name)
    answer = Answer(stats=arguments.stats, choices=arguments.n or 1, logprobs=arguments.logprobs is not None)
    async with client_of(arguments) as client:
        async for event in client.generate(deadline=arguments.timeout, **fields):
            answer.show(event)
    answer.end()
    return 0


def _prompt(arguments: argparse.Namespace) -> GenerateFields:
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if text is None:
        return {}
    if arguments.token_ids:
        return {"token_ids": _ids(text)}
    if arguments.chat:
        system = [{"role": "system", "content": arguments.system}] if arguments.system is not None else []
        return {"chat": [*system, {"role": "user", "content": text}]}
    return {"text": text}


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if text]
    except ValueError:
        raise InvalidArgument("token_ids", text, "give integers, separated by commas") from None


class Answer:
    """Shows one call's events: the text on standard output, everything about it on standard error. Several choices
    arrive interleaved, so they are shown one after another at the end."""

    def __init__(self, *, stats: bool, choices: int = 1, logprobs: bool = False) -> None:
        self._out, self._about = Console(highlight=False), Console(stderr=True, highlight=False)
        self._stats = stats
        self._logprobs = logprobs
        self._choices = choices
        self._held: dict[int, list[Chunk]] = {}
        self._complete: dict[int, Complete] = {}
        self.session_id = ""
        self.num_tokens = 0

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self.session_id = self.session_id or event.session_id
        elif isinstance(event, Complete):
            self._complete[event.index] = event
        elif self._choices > 1:
            self._held.setdefault(event.index, []).append(event)
        else:
            self._write(event)

    def end(self) -> None:
        """Raises nothing if the stream was cut: shows what there is."""
        for index, chunks in sorted(self._held.items()):
            self._about.print(f"[dim]choice {index}[/]")
            for chunk in chunks:
                self._write(chunk)
            self._newline()
        if not self._held:
            self._newline()
        if self._stats:
            if sys.stdout.isatty():
                self._about.print(legend())
            for _, complete in sorted(self._complete.items()):
                self._about.print(statistics(complete))
            self._about.print(f"[dim]session {self.session_id}[/]")

    def _write(self, chunk: Chunk) -> None:
        self.num_tokens += len(chunk.tokens)
        if self._logprobs:
            for token in chunk.tokens:
                self._about.print(_logprob_line(token), markup=False)
        if not sys.stdout.isatty():
            sys.stdout.write(chunk.text)
        elif self._stats:
            self._out.print(coloured(chunk), end="", soft_wrap=True)
        else:
            sys.stdout.write(printable(chunk.text))
        sys.stdout.flush()

    def _newline(self) -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()


def _logprob_line(token: Any) -> str:
    others = "  ".join(f"{top.id} {top.logprob:.3f}" for top in token.top_logprobs)
    return f"{token.id:>8} {token.logprob:8.3f}  {token.text!r}  {others}".rstrip()
