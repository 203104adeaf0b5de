"""The same request with speculation and without, run by turns, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Unpack

from protos.generation_pb2 import Chunk, Complete, DraftStats
from specdec.edge.client import Client, GenerateFields
from specdec.edge.received import Event


@dataclass(frozen=True, slots=True)
class Run:
    """One generation. seconds: from the call to its last event, the prompt included."""

    token_ids: tuple[int, ...]
    seconds: float
    stats: DraftStats

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds


async def run(
    client: Client, on_event: Callable[[Event], None] = lambda _: None, **fields: Unpack[GenerateFields]
) -> Run:
    """Raises SpecdecError."""
    begun = time.perf_counter()
    token_ids: list[int] = []
    stats = DraftStats()
    async for event in client.generate(**fields):
        on_event(event)
        if isinstance(event, Chunk):
            token_ids.extend(token.id for token in event.tokens)
        elif isinstance(event, Complete):
            stats = event.draft_stats
    return Run(tuple(token_ids), time.perf_counter() - begun, stats)


def exact_alpha(answers: Sequence[DraftStats]) -> float | None:
    """Mean of 1 - TV(p, q) where it was measured. None where that is less than half of what was judged: at T = 0, and
    of coupled drafts, whose laws do not travel; the few lookups among them would not speak for the rest."""
    measured = sum(stats.exact_alpha_count for stats in answers)
    judged = sum(sum(stats.reached_per_position) for stats in answers)
    return sum(stats.exact_alpha_sum for stats in answers) / measured if 2 * measured > judged else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of one request, as many of one kind as of the other; plain: num_draft_tokens = 0. Figures of
    speculation are over all its runs together."""

    name: str
    speculative: tuple[Run, ...]
    plain: tuple[Run, ...]

    @property
    def speculative_rate(self) -> float:
        """Tokens per second, the median run."""
        return median(r.tokens_per_second for r in self.speculative)

    @property
    def plain_rate(self) -> float:
        return median(r.tokens_per_second for r in self.plain)

    @property
    def ratio(self) -> float:
        return self.speculative_rate / self.plain_rate

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted."""
        drafted = sum(r.stats.draft_tokens for r in self.speculative)
        return sum(r.stats.accepted_tokens for r in self.speculative) / drafted if drafted else None

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per cycle, the recovered or bonus token included, cycles without a draft too."""
        return sum(len(r.token_ids) for r in self.speculative) / self._cycles

    @property
    def exact_alpha(self) -> float | None:
        return exact_alpha([run.stats for run in self.speculative])

    @property
    def bytes_per_cycle(self) -> tuple[float, float]:
        """Sent to the replicas, received from them."""
        sent = sum(r.stats.bytes_sent for r in self.speculative)
        received = sum(r.stats.bytes_received for r in self.speculative)
        return sent / self._cycles, received / self._cycles

    @property
    def identical(self) -> bool:
        """Whether every run gave the same tokens."""
        return len({r.token_ids for r in (*self.speculative, *self.plain)}) == 1

    @property
    def _cycles(self) -> int:
        return max(sum(r.stats.cycles for r in self.speculative), 1)


async def compare(
    client: Client,
    name: str,
    pairs: int,
    on_run: Callable[[], None] = lambda: None,
    **fields: Unpack[GenerateFields],
) -> Comparison:
    """Speculative, plain, speculative, plain, ...: what drifts on the machine meets both kinds alike."""
    without: GenerateFields = {**fields, "num_draft_tokens": 0}
    speculative, plain = [], []
    for _ in range(pairs):
        speculative.append(await run(client, **fields))
        on_run()
        plain.append(await run(client, **without))
        on_run()
    return Comparison(name, tuple(speculative), tuple(plain))
