"""How long a generation stands still when its verifier dies.

    python -m benchmarks.failover [--model smollm2|FOLDER] [--dtype bfloat16] [--kills 12] [--quick] [--json FILE]

A session with a context of a thousand tokens generates on one of two verifiers, which is killed (kill -9) half-way; the
pause is the longest wait between two chunks from then on, as the client sees it. With keys and values in Redis, and
without, where the other verifier computes the context again. Output is checked against an undisturbed run."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

from benchmarks.models import prepared
from benchmarks.report import Row, parser, percentile, report
from protos.generation_pb2 import Chunk
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster, ClusterSpec, Member
from tests.metrics import page, total
from tests.redis_server import RedisProcess

CONTEXT, TOKENS, KILLED_AT = 1024, 96, 24
VERIFIERS = 2


def request(number: int) -> dict[str, Any]:
    """Greedy, with a prompt that no other has."""
    ids = [1000 + (number * 7919 + i * 31) % 20_000 for i in range(CONTEXT)]
    return {"token_ids": ids, "max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True, "num_draft_tokens": 0}


def streams(member: Member) -> float:
    return total(page(member.metrics_url), "specdec_sessions")


async def answer(client: Client, number: int, verifiers: list[Member]) -> tuple[list[int], float, Member | None]:
    """The ids, the longest wait after the kill, and who was killed; verifiers: []: nobody is."""
    clock = asyncio.get_running_loop().time
    ids, pause, last = list[int](), 0.0, clock()
    killed: Member | None = None
    async with aclosing(client.generate(**request(number))) as events:
        async for event in events:
            now = clock()
            if killed is not None:
                pause = max(pause, now - last)
            last = now
            if isinstance(event, Chunk):
                ids += [token.id for token in event.tokens]
            if verifiers and killed is None and len(ids) >= KILLED_AT:
                busy = [m for m in verifiers if await asyncio.to_thread(streams, m)]
                killed, last = busy[0], clock()
                os.kill(killed.process.pid, signal.SIGKILL)
    return ids, pause, killed


async def pauses(model: str, dtype: str, kills: int) -> list[Row]:
    found: dict[bool, list[float]] = {False: [], True: []}
    with RedisProcess() as redis, tempfile.TemporaryDirectory() as folder:
        for shared in (True, False):
            logs = Path(folder) / str(shared)
            logs.mkdir()
            spec = ClusterSpec(model, dtype=dtype, verifiers=VERIFIERS, kv_store=redis.url if shared else None)
            async with AsyncExitStack() as exits:
                cluster = await exits.enter_async_context(Cluster(spec, logs, lambda line: None))
                client = await exits.enter_async_context(Client(cluster.address))
                verifiers = [m for m in cluster.members if m.process.name.startswith("verifier")]
                for number in range(kills):
                    ids, pause, killed = await answer(client, number, verifiers)
                    assert len(ids) == TOKENS and killed is not None, "tokens were lost, or nobody was killed"
                    found[shared].append(pause)
                    await killed.process.stop(1.0)
                    await killed.process.start()
                    async with asyncio.timeout(120):
                        while (await client.info()).ready_verifiers < VERIFIERS:  # noqa: ASYNC110
                            await asyncio.sleep(0.1)
                    undisturbed, *_ = await answer(client, number, [])
                    assert ids == undisturbed, "the output changed"
    rows = []
    for name, value in (("median", statistics.median), ("95 %", lambda times: percentile(times, 0.95))):
        subject = f"{CONTEXT} tokens, {kills} kills, KV in Redis"
        rows.append(
            Row(f"pause, {name}", subject, 1e3 * value(found[True]), "ms", "computed again", 1e3 * value(found[False]))
        )
    return rows


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    arguments.add_argument("--kills", type=int, default=12)
    options = arguments.parse_args()
    kills = 2 if options.quick else options.kills
    rows = asyncio.run(pauses(prepared(options.model), options.dtype, kills))
    report("Failover", rows, options.json)


if __name__ == "__main__":
    main()
