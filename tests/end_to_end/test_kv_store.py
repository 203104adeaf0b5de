"""Verifiers that share keys and values through a real Redis: one dies or drains, another goes on where it was."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from specdec.edge.client import Client
from specdec.edge.cluster import Cluster
from tests.end_to_end.clusters import VOCAB, cluster, generated, tiny_folder
from tests.end_to_end.test_failover import SEEDED, TOKENS, generated_through_a_kill, serving
from tests.metrics import page, total
from tests.redis_server import RedisProcess

PROMPTS = [[(step * i) % VOCAB for i in range(200)] for step in (7, 5)]  # two, so that no verifier knows the second


def brought(running: Cluster) -> list[float]:
    """Context tokens that each member had from the store so far, 0 once it has ended."""
    pages = [page(member.metrics_url) for member in running.members]
    return [total(text, "specdec_kv_hit_tokens_total", tier="store") for text in pages]


@pytest.mark.scenario("B24", "B95")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_session_moves_with_its_keys_and_values(tmp_path: Path, number: signal.Signals) -> None:
    """B24: n tokens and n - 1 rows at most; B95: it goes on at its position. The verifier that serves it ends."""
    folder = tiny_folder(tmp_path / "model")
    common = {"max_tokens": TOKENS, "num_draft_tokens": 2}
    requests = [{**common, "token_ids": PROMPTS[0], "temperature": 0.0}, {**common, "token_ids": PROMPTS[1], **SEEDED}]
    async with cluster(folder, tmp_path / "alone") as running, Client(running.address) as client:
        expected = [(await generated(client, **fields))[0] for fields in requests]
    with RedisProcess() as redis:
        spec: dict[str, Any] = {"verifiers": 3, "kv_store": redis.url, "store": redis.url}
        async with cluster(folder, tmp_path / "logs", **spec) as running, Client(running.address) as client:
            for fields, wanted in zip(requests, expected, strict=True):
                before = brought(running)
                ids = await generated_through_a_kill(client, running, serving(running), number, **fields)
                assert ids == wanted
                gains = [now - then for now, then in zip(brought(running), before, strict=True)]
                assert max(gains) >= 200 // 32 * 32, "it was computed again"
