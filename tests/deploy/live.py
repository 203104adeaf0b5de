"""What /metrics really shows: of three processes under a little of everything, and of every instrument there is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from specdec.edge.client import Client
from specdec.edge.instruments import Counter, Gauge, Histogram
from specdec.edge.telemetry import CoordinatorMetrics, ReplicaMetrics, Telemetry
from tests.deploy.queries import Series
from tests.end_to_end.clusters import PROMPT, all_generated, cluster, tiny_folder
from tests.metrics import page
from tests.redis_server import RedisProcess

GREEDY: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 24, "temperature": 0.0, "num_draft_tokens": 3}
SAMPLED: dict[str, Any] = {**GREEDY, "temperature": 1.0, "drafter": "lm"}


def series_of(text: str) -> dict[str, frozenset[str]]:
    """The labels of each series of a page."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return {name: frozenset(labels) for name, labels in found.items()}


async def live(folder: Path) -> dict[str, frozenset[str]]:
    """Of a coordinator, a drafter and a verifier of a tiny model in `folder`, over a real Redis."""
    model = tiny_folder(folder / "model")
    with RedisProcess() as redis:
        stores: dict[str, Any] = {"store": redis.url, "kv_store": redis.url}
        async with cluster(model, folder / "logs", **stores) as running, Client(running.address) as client:
            await all_generated(client, [GREEDY, SAMPLED])
            pages = await asyncio.gather(*(asyncio.to_thread(page, m.metrics_url) for m in running.members))
    return _joined([series_of(text) for text in pages])


def declared(*, labelled: bool) -> dict[str, frozenset[str]]:
    """As /metrics would show every instrument once it was used. labelled: only those with labels of their own, which
    show nothing before the event that they count."""
    with Telemetry.start("declared", env={}) as telemetry:
        for metrics in (CoordinatorMetrics(telemetry), ReplicaMetrics(telemetry)):
            for instrument in vars(metrics).values():
                if instrument._labels or not labelled:
                    _use(instrument, dict.fromkeys(instrument._labels, "x"))
        found = series_of(telemetry.scrape())
    return {name: labels for name, labels in found.items() if not labelled or labels - {"service_name", "le"}}


def _use(instrument: Counter | Gauge | Histogram, labels: dict[str, str]) -> None:
    if isinstance(instrument, Counter):
        instrument.add(1, **labels)
    elif isinstance(instrument, Gauge):
        instrument.set(1, **labels)
    else:
        instrument.record(1, **labels)


def shown_by_processes(folder: Path) -> Series:
    """`live`, and what shows only after an event that did not happen there."""
    return _joined([declared(labelled=True), asyncio.run(live(folder))])


def _joined(pages: list[dict[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for each in pages:
        for name, labels in each.items():
            found[name] = found.get(name, frozenset()) | labels
    return found
