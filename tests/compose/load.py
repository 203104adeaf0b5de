"""Callers without a pause, while the stack changes under them."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from protos.generation_pb2 import Chunk
from specdec.core.errors import SpecdecError
from specdec.edge.client import Client

PROMPTS = (
    "Write a short story about a lighthouse keeper and a storm.",
    "Count from one to twenty, then count back again.",
    "Explain to a child why the sky is blue.",
)
MAX_TOKENS = 48


@dataclass
class Tally:
    """requests: those that ended well. pause: the longest wait for the next tokens of a running answer, in seconds.
    unlike: answers that differ from the first one to the same prompt, though all are greedy."""

    requests: int = 0
    tokens: int = 0
    pause: float = 0.0
    unlike: int = 0
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counted = f"{self.requests} requests, {self.tokens} tokens, {len(self.errors)} errors, {self.unlike} unlike"
        return f"{counted}; longest wait for a token {self.pause:.2f} s"


class Load:
    """`async with Load(address) as load`: inside, one caller for each prompt asks again and again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._first = dict[str, str]()
        self.tally = Tally()

    async def __aenter__(self) -> Self:
        self._stop = False
        self._callers = [asyncio.create_task(self._call(prompt)) for prompt in PROMPTS]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets running answers end, unless it leaves by an error."""
        self._stop = True
        if error is not None:
            for caller in self._callers:
                caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=error is not None)

    async def more(self, requests: int) -> None:
        """Returns when so many more have ended well."""
        wanted = self.tally.requests + requests
        while self.tally.requests < wanted and not self.tally.errors:  # noqa: ASYNC110 (callers on the same loop)
            await asyncio.sleep(0.05)

    async def _call(self, prompt: str) -> None:
        async with Client(self._address) as client:
            while not self._stop:
                try:
                    self._ended(prompt, await self._answer(client, prompt))
                except SpecdecError as error:
                    self.tally.errors.append(repr(error))

    async def _answer(self, client: Client, prompt: str) -> str:
        clock = asyncio.get_running_loop().time
        text, times = "", list[float]()
        chat = [{"role": "user", "content": prompt}]
        async with aclosing(client.generate(chat=chat, temperature=0.0, max_tokens=MAX_TOKENS)) as events:
            async for event in events:
                if isinstance(event, Chunk):
                    text += event.text
                    times.append(clock())
                    self.tally.tokens += len(event.tokens)
        self.tally.pause = max([self.tally.pause, *(b - a for a, b in itertools.pairwise(times))])
        return text

    def _ended(self, prompt: str, text: str) -> None:
        self.tally.requests += 1
        self.tally.unlike += self._first.setdefault(prompt, text) != text
