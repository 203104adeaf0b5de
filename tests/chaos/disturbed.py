"""Generations that are disturbed half-way, and what became of each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from protos.generation_pb2 import Chunk, Complete
from tests.chaos.faults import FAULTS
from tests.chaos.scene import Member, Scene

TOKENS = 160
VOCAB = 32
REQUESTS = 29  # of different kinds, so that every fault meets several of them


def requests(count: int) -> list[dict[str, Any]]:
    """Greedy, seeded and neither by turns, drafts of the model and by the planner by turns, each with a prompt of its
    own that fills two blocks and more."""
    made = []
    for i in range(count):
        rng = random.Random(i)
        sampling = ({"temperature": 0.0}, {"temperature": 1.0, "seed": i}, {"temperature": 1.0})[i % 3]
        drafts = {"drafter": "lm", "num_draft_tokens": 3} if i % 2 else {}
        prompt = [rng.randrange(VOCAB) for _ in range(70 + i % 7)]
        made.append({"token_ids": prompt, "max_tokens": TOKENS, "ignore_eos": True, **sampling, **drafts})
    return made


@dataclass
class Outcome:
    """prompt, expected: token ids, None: any that are lawful; at: tokens that the client had when the fault began; hit:
    the fault found something to do; pause: the longest wait for a token from then on; error: what the caller saw in
    place of the rest."""

    kind: str
    prompt: Sequence[int]
    expected: Sequence[int] | None
    ids: list[int] = field(default_factory=list)
    at: int = 0
    hit: bool = False
    pause: float = 0.0
    ended: bool = False
    error: str = ""

    @property
    def fired(self) -> bool:
        return self.hit and 0 < self.at < TOKENS

    @property
    def right(self) -> bool:
        whole = self.ended and not self.error and len(self.ids) == TOKENS
        return whole and (self.expected is None or self.ids == list(self.expected))


async def undisturbed(scene: Scene, wanted: Sequence[dict[str, Any]]) -> list[list[int] | None]:
    """None where nothing decides the output but chance."""
    async with scene.client(0) as client:
        outputs: list[list[int] | None] = []
        for fields in wanted:
            events = [event async for event in client.generate(**fields)]
            ids = [token.id for event in events if isinstance(event, Chunk) for token in event.tokens]
            outputs.append(ids if fields["temperature"] == 0 or "seed" in fields else None)
    return outputs


async def disturbed(
    scene: Scene, kind: str, fields: dict[str, Any], expected: Sequence[int] | None, when: int
) -> Outcome:
    """One generation, during which the fault begins once the client has `when` tokens."""
    outcome, first = Outcome(kind, fields["token_ids"], expected), when % len(scene.coordinators)
    fault: asyncio.Task[bool | None] | None = None
    clock = asyncio.get_running_loop().time
    last = clock()
    try:
        async with scene.client(first) as client, aclosing(client.generate(**fields)) as events:
            async for event in events:
                now = clock()
                if fault is not None:
                    outcome.pause = max(outcome.pause, now - last)
                last = now
                if isinstance(event, Chunk):
                    assert event.offset == len(outcome.ids), "a token was lost or sent twice"
                    outcome.ids += [token.id for token in event.tokens]
                outcome.ended |= isinstance(event, Complete)
                if fault is None and len(outcome.ids) >= when:
                    outcome.at, last = len(outcome.ids), clock()
                    fault = asyncio.create_task(_inflicted(kind, scene, scene.coordinators[first]))
    except Exception as error:  # whatever reaches the caller is the outcome
        outcome.error = repr(error)
    if fault is not None:
        outcome.hit = await fault is not False
    await scene.healthy()
    return outcome


async def _inflicted(kind: str, scene: Scene, coordinator: Member) -> bool | None:
    return await FAULTS[kind](scene, coordinator)


async def run(scene: Scene, kinds: Sequence[str], seed: int = 0) -> list[Outcome]:
    """One generation after another, each disturbed by the next kind."""
    rng = random.Random(seed)
    wanted = requests(min(len(kinds), REQUESTS))
    expected = await undisturbed(scene, wanted)
    outcomes = []
    for number, kind in enumerate(kinds):
        i = number % len(wanted)
        outcomes.append(await disturbed(scene, kind, wanted[i], expected[i], rng.randrange(2, TOKENS // 3)))
        if not (outcomes[-1].right and outcomes[-1].fired):
            print(f"{number}: {kind}: {outcomes[-1]}", flush=True)
    return outcomes


async def soak(scene: Scene, generations: int, at_once: int = 4) -> None:
    """Generations side by side, of which every second is left half-way."""
    wanted = requests(generations)

    async def one(number: int) -> None:
        async with scene.client(number % 2) as client, aclosing(client.generate(**wanted[number])) as events:
            async for event in events:
                if number % 2 and isinstance(event, Chunk) and event.offset > TOKENS // 2:
                    return

    for first in range(0, generations, at_once):
        await asyncio.gather(*(one(number) for number in range(first, min(generations, first + at_once))))
