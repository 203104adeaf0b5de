"""Processes die mid-stream, for real; greedy and seeded output does not change."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from protos.generation_pb2 import Chunk, Complete
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster
from tests.end_to_end.clusters import PROMPT, cluster, generated, tiny_folder
from tests.metrics import page, total

TOKENS = 120
SEEDED = {"temperature": 1.0, "seed": 11}


async def generated_through_a_kill(
    client: Client, running: Cluster, names: Callable[[], list[str]], number: signal.Signals, **fields: Any
) -> list[int]:
    """The ids of a generation during which every process of `names` is hit, after its 20th token."""
    ids: list[int] = []
    ended = hit = False
    async with aclosing(client.generate(**fields)) as events:
        async for event in events:
            if isinstance(event, Chunk):
                assert event.offset == len(ids), "a token was lost or sent twice"
                ids += [token.id for token in event.tokens]
            ended |= isinstance(event, Complete)
            if len(ids) >= 20 and not hit:
                for name in await asyncio.to_thread(names):
                    hit = True
                    os.kill(pid_of(running, name), number)
    assert ended and hit and len(ids) == fields["max_tokens"]
    return ids


def pid_of(running: Cluster, name: str) -> int:
    (member,) = [m for m in running.members if m.process.name == name]
    return member.process.pid


def serving(running: Cluster) -> Callable[[], list[str]]:
    """The verifiers that have an open stream, at the time of the call."""

    def names() -> list[str]:
        verifiers = [m for m in running.members if m.process.name.startswith("verifier")]
        return [m.process.name for m in verifiers if total(page(m.metrics_url), "specdec_sessions")]

    return names


@pytest.mark.scenario("B95", "B97")
@pytest.mark.timeout(240)
async def test_output_survives_kill_9_of_verifier_and_drafter(tmp_path: Path) -> None:
    """Greedy and seeded requests are cut off from a verifier, then from every drafter, and end as if nothing was."""
    folder = tiny_folder(tmp_path / "model")
    greedy = {"token_ids": PROMPT, "max_tokens": TOKENS, "temperature": 0.0, "num_draft_tokens": 2, "drafter": "lm"}
    seeded = {**greedy, **SEEDED}
    async with (
        cluster(folder, tmp_path / "logs", verifiers=3, drafters=2) as running,
        Client(running.address) as client,
    ):
        expected = [(await generated(client, **fields))[0] for fields in (greedy, seeded)]
        through_verifier = await generated_through_a_kill(client, running, serving(running), signal.SIGKILL, **greedy)
        drafters = ["drafter-0", "drafter-1"]
        through_drafters = await generated_through_a_kill(client, running, lambda: drafters, signal.SIGKILL, **seeded)
        without_drafters, stats = await generated(client, **seeded)
    assert through_verifier == expected[0]
    assert through_drafters == expected[1]
    assert without_drafters == expected[1]
    assert stats.fallbacks, "the drafters were not missed: the kill did not happen"
