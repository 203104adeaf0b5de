"""What keys and values in Redis bring and cost.

    python -m benchmarks.kv_store [--model smollm2|qwen1.5b|FOLDER] [--dtype bfloat16] [--quick] [--json FILE]

Adopting: a context of 1,024 tokens that another engine has computed and stored is asked for at an engine that never saw
it, from the request to the reply, fetch and last block included; by turns with contexts that nobody has stored, which
are computed. The engine's pool has room for two contexts and is full by then, as that of a verifier that has been at
work: memory that was never written costs either way.

Cycles: sessions, each with a prompt of its own, through a real cluster whose verifier stores what it fills, by turns
with one that does not; and which share of all full blocks was stored."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.models import prepared
from benchmarks.overhead import Sample, measure
from benchmarks.report import Row, parser, report
from specdec.core.sampling import SamplingParams
from specdec.core.tree import EMPTY_TREE, Ids
from specdec.core.verification import Verification
from specdec.edge.batcher import MicroBatcher
from specdec.edge.cluster import Cluster, ClusterSpec
from specdec.edge.messages import OpenSession, VerifyRequest
from specdec.lm.loading import Dtype, LoadedModel, load_model
from specdec.lm.network import BLOCK
from specdec.lm.runner import Runner
from target_service.engine import Engine, EngineLimits
from target_service.kv_tier.block_format import BlockFrame
from target_service.kv_tier.block_store import block_store
from target_service.kv_tier.fetching import Fetching
from target_service.kv_tier.tier import KVTier
from target_service.kv_tier.write_behind import WriteBehind
from target_service.service import Batcher
from target_service.session import VerifyJob
from target_service.sharing import KVSharing
from tests.metrics import page, total
from tests.redis_server import RedisProcess

CONTEXT = 1024 + 8  # tokens: 32 full blocks, and a few that are always computed
GREEDY = SamplingParams(temperature=0.0)
WARM = 2  # repeats that do not count
OUTCOMES = ("stored", "known", "dropped", "over_budget", "failed")
BUDGET = 512  # rows of one forward


class Verifier:
    """An engine and its share in the tier, without a wire."""

    def __init__(self, engine: Engine, batcher: Batcher, sharing: KVSharing, tier: KVTier) -> None:
        self._engine, self._batcher, self._sharing, self.tier = engine, batcher, sharing, tier

    async def ask(self, context: Ids) -> tuple[float, int]:
        """Seconds to the law behind a context that begins here, and how many tokens the store had of it."""
        begun = time.perf_counter()
        opening = OpenSession("benchmark", GREEDY, 0, len(context))
        session = await self._batcher.call(partial(self._engine.open, opening))
        found = await self._sharing.bring(self._batcher, context)
        reply = await self._batcher.submit(VerifyJob(session, VerifyRequest(1, 0, context, EMPTY_TREE, open=opening)))
        seconds = time.perf_counter() - begun
        assert isinstance(reply.result, Verification), reply.result
        await self._batcher.call(partial(self._sharing.keep, session))
        await self._batcher.call(partial(self._engine.close, session))
        return seconds, found


@asynccontextmanager
async def verifier(loaded: LoadedModel, url: str) -> AsyncIterator[Verifier]:
    limits = EngineLimits(token_budget=BUDGET, max_nodes=16, max_context=CONTEXT + 16, max_sessions=4)
    engine = Engine(Runner(loaded, 2 * (CONTEXT + BLOCK)), limits)
    writes = WriteBehind(queue_bytes=1 << 30, budget_bytes=None, ttl=600.0)
    frame = BlockFrame(engine.exchange.identity, engine.exchange.block_bytes)
    fetching = Fetching(engine.exchange.identity, engine.exchange.block_bytes, writes)
    connect = block_store(url, ttl=600.0, timeout=10.0)
    batcher: Batcher
    async with (
        KVTier(connect, frame, writes, fetching) as tier,
        MicroBatcher(engine.step, queue_limit=4) as batcher,
    ):
        sharing = KVSharing(tier, engine.exchange, engine.schedule)
        yield Verifier(engine, batcher, sharing, tier)


async def adopting(loaded: LoadedModel, repeats: int) -> list[Row]:
    rng = np.random.default_rng(0)
    contexts = rng.integers(0, loaded.vocab_size, (2 * (repeats + WARM), CONTEXT)).astype(np.uint32)
    stored, fresh = contexts[: repeats + WARM], contexts[repeats + WARM :]
    adopted, computed, loaded_later = list[float](), list[float](), 0
    with RedisProcess() as redis:
        async with verifier(loaded, redis.url) as first:
            for context in stored:
                await first.ask(context)
            assert await first.tier.flush(60.0)
        async with verifier(loaded, redis.url) as second:
            for theirs, new in zip(stored, fresh, strict=True):
                seconds, found = await second.ask(theirs)
                assert found == CONTEXT // BLOCK * BLOCK, f"only {found} tokens were in the store"
                loaded_later += found // BLOCK
                adopted.append(seconds)
                computed.append((await second.ask(new))[0])
                await second.tier.flush(60.0)
    fast, slow = statistics.median(adopted[WARM:]), statistics.median(computed[WARM:])
    size = loaded.network.kv_shape.bytes_per_token * CONTEXT / 2**20
    subject = f"{loaded.name}, {loaded.dtype}, {size:.0f} MiB"
    return [
        Row(f"{CONTEXT} tokens, from Redis", subject, 1e3 * fast, "ms", "computed", 1e3 * slow),
        Row("computed over from Redis", subject, slow / fast, "x"),
        Row("stored blocks that were loaded later", f"of {len(stored) * (CONTEXT // BLOCK)}", loaded_later, "blocks"),
    ]


async def cycles(model: str, dtype: str, rounds: int, tokens: int) -> list[Row]:
    """Both clusters live all the time and take turns of a few seconds: the machine's own moods meet both."""
    p50: dict[tuple[bool, int], list[float]] = {}
    rate: dict[tuple[bool, int], list[float]] = {}
    with RedisProcess() as redis, tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            clusters = {}
            for shared in (False, True):
                logs = Path(folder) / str(shared)
                logs.mkdir()
                spec = ClusterSpec(model, dtype=dtype, kv_store=redis.url if shared else None)
                clusters[shared] = await stack.enter_async_context(Cluster(spec, logs, lambda line: None))
                await measure(clusters[shared].address, 1, 4, Sample())
            for number in range(rounds):
                for sessions in (1, 8):
                    for shared in (False, True) if number % 2 else (True, False):
                        sample = Sample()
                        prompt = partial(story, number)
                        await measure(clusters[shared].address, sessions, tokens, sample, prompt)
                        p50.setdefault((shared, sessions), []).append(statistics.median(sample.cycle))
                        rate.setdefault((shared, sessions), []).extend(sample.tokens_per_second)
                print(f"round {number + 1} of {rounds} done", flush=True)
            written = outcomes(clusters[True])
    rows = []
    for sessions in (1, 8):
        subject = f"{sessions} session{'s' if sessions > 1 else ''}, write-behind"
        for measured, values, unit in (("cycle p50", p50, "ms"), ("throughput", rate, "tokens/s")):
            ours, plain = values[True, sessions], values[False, sessions]
            rows.append(Row(measured, subject, statistics.median(ours), unit, "without", statistics.median(plain)))
            ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
            rows.append(Row(f"{measured}, with over without", f"{subject}, median of {rounds} pairs", ratio, "x"))
    offered, kept = sum(written.values()), written["stored"] + written["known"]
    return [*rows, Row("full blocks stored", f"of {offered}", 100 * kept / max(1, offered), "%")]


def story(round_: int, number: int) -> str:
    """A prompt of some blocks that no other session has."""
    number += 100 * round_
    return f"Story number {number}. Once upon a time {number} bears lived in a wood, and one of them said:\n" * 8


def outcomes(cluster: Cluster) -> dict[str, int]:
    """Of the blocks that verifiers offered."""
    pages = [page(member.metrics_url) for member in cluster.members]
    name, way = "specdec_kv_store_blocks_total", {"direction": "write"}
    return {outcome: round(sum(total(text, name, outcome=outcome, **way) for text in pages)) for outcome in OUTCOMES}


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    arguments.add_argument("--part", choices=("adopting", "cycles"), help="unset: both")
    options = arguments.parse_args()
    folder = prepared(options.model)
    rows: list[Row] = []
    if options.part != "cycles":
        loaded = load_model(folder, dtype=cast(Dtype, options.dtype), device="cpu")
        rows += asyncio.run(adopting(loaded, 3 if options.quick else 7))
        del loaded
    if options.part != "adopting":
        rounds, tokens = (2, 64) if options.quick else (10, 192)
        rows += asyncio.run(cycles(folder, options.dtype, rounds, tokens))
    report("Keys and values in Redis", rows, options.json)


if __name__ == "__main__":
    main()
