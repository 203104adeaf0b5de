"""The run: every prompt with every configuration, by turns, so that what drifts on the machine meets all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from protos.generation_pb2 import Chunk, ServiceInfo
from specdec.edge.client import Client, GenerateFields
from specdec.edge.profile.cells import AUTO, PLAIN, Key
from specdec.edge.profile.cycles import CycleSample, steady
from specdec.edge.profile.prompts import Prompt
from specdec.edge.profile.statistics import branching

WARM_UP_TOKENS = 16
MAX_DRAFT_TOKENS = 16  # of a coordinator that does not say


@dataclass(frozen=True, slots=True)
class Run:
    """chains, trees: the grid of draft tokens, of nodes for drafters whose drafts branch. max_tokens: of an answer."""

    prompts: tuple[Prompt, ...]
    temperatures: tuple[float, ...]
    drafters: tuple[str, ...]
    chains: tuple[int, ...]
    trees: tuple[int, ...]
    max_tokens: int
    rounds: int = 1

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(prompt.domain for prompt in self.prompts))


def most_draft_tokens(info: ServiceInfo) -> int:
    """That the coordinator takes in one request."""
    return int(info.config.get("max_draft_tokens", MAX_DRAFT_TOKENS))


async def measured(
    client: Client, run: Run, limit: int, advance: Callable[[float], None]
) -> dict[Key, list[CycleSample]]:
    """Steady cycles by configuration. limit: draft tokens of a request at most. advance: told the share done, 0 to 1.
    Raises SpecdecError."""
    samples: dict[Key, list[CycleSample]] = {}
    configurations = {t: await _configurations(client, run, t, limit) for t in run.temperatures}
    order = list(_order(run, configurations))
    for number, (prompt, temperature, drafter, k) in enumerate(order):
        cycles = await one_answer(client, prompt, temperature, drafter, k, run.max_tokens)
        samples.setdefault(Key(prompt.domain, temperature, drafter, k), []).extend(cycles)
        advance((number + 1) / len(order))
    return samples


async def one_answer(
    client: Client, prompt: Prompt, temperature: float, drafter: str, k: int | None, max_tokens: int
) -> tuple[CycleSample, ...]:
    """Its steady cycles. Unseeded, and judged token by token: of the rules for sampled drafts the one whose alphas are
    the chance of each token. The laws are the models' own, whatever the generation_config cuts off."""
    fields: GenerateFields = {
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": max_tokens,
        "num_draft_tokens": k,
        "drafter": None if drafter in (AUTO, PLAIN) else drafter,
        "verification": "rejection" if temperature > 0 else None,
        **prompt.fields(),
    }
    async with aclosing(client.generate(**fields)) as events:
        return steady([event async for event in events if isinstance(event, Chunk)])


async def _configurations(client: Client, run: Run, temperature: float, limit: int) -> list[tuple[str, int | None]]:
    """(drafter, k) in the order of the first round. Each drafter drafts a little first: that warms it up, and shows
    whether it branches."""
    chosen: list[tuple[str, int | None]] = [(PLAIN, 0), (AUTO, None)]
    for drafter in run.drafters:
        k = min(limit, max(run.trees))
        cycles = await one_answer(client, run.prompts[0], temperature, drafter, k, WARM_UP_TOKENS)
        grid = run.trees if branching(cycles) else run.chains
        chosen += [(drafter, k) for k in dict.fromkeys(min(k, limit) for k in grid)]
    return chosen


def _order(
    run: Run, configurations: dict[float, list[tuple[str, int | None]]]
) -> Iterator[tuple[Prompt, float, str, int | None]]:
    """Each prompt begins with another configuration, so that none always follows the same one."""
    turn = 0
    for _ in range(run.rounds):
        for prompt in run.prompts:
            for temperature, chosen in configurations.items():
                for i in range(len(chosen)):
                    yield (prompt, temperature, *chosen[(turn + i) % len(chosen)])
                turn += 1
