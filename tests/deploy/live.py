"""What /metrics really shows: of three processes under a little of everything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specdec.edge.client import Client
from tests.end_to_end.clusters import PROMPT, all_generated, cluster, tiny_folder
from tests.metrics import Series, declared, page, series_of
from tests.redis_server import RedisProcess

GREEDY: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 24, "temperature": 0.0, "num_draft_tokens": 3}
SAMPLED: dict[str, Any] = {**GREEDY, "temperature": 1.0, "drafter": "lm"}


async def live(folder: Path) -> Series:
    """Of a coordinator, a drafter and a verifier of a tiny model in `folder`, over a real Redis."""
    model = tiny_folder(folder / "model")
    with RedisProcess() as redis:
        stores: dict[str, Any] = {"store": redis.url, "kv_store": redis.url}
        async with cluster(model, folder / "logs", **stores) as running, Client(running.address) as client:
            await all_generated(client, [GREEDY, SAMPLED])
            pages = await asyncio.gather(*(asyncio.to_thread(page, m.metrics_url) for m in running.members))
    return _joined([series_of(text) for text in pages])


def shown_by_processes(folder: Path) -> Series:
    """`live`, and what shows only after an event that did not happen there."""
    return _joined([declared(labelled=True), asyncio.run(live(folder))])


def _joined(pages: Iterable[Series]) -> Series:
    found: dict[str, frozenset[str]] = {}
    for each in pages:
        for name, labels in each.items():
            found[name] = found.get(name, frozenset()) | labels
    return found
