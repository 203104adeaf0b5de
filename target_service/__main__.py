"""`python -m target_service`: one verifier replica. `--help` lists the flags; environment variables have the same
names."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import cast

import torch

from protos import target_pb2_grpc
from specdec.core.errors import ConfigError
from specdec.edge.batcher import MicroBatcher, compute_thread
from specdec.edge.config import exit_with, load_config
from specdec.edge.garbage import settle_garbage
from specdec.edge.logging import configure_logging
from specdec.edge.server import GrpcServer, run_until_signal
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.edge.tls import read_tls
from specdec.lm.loading import Dtype, LoadedModel, load_model
from specdec.lm.runner import Runner
from target_service.config import UNTUNED_BUDGET, TargetConfig
from target_service.engine import Engine, EngineLimits
from target_service.health import watch_health
from target_service.kv_tier.block_format import BlockFrame
from target_service.kv_tier.block_store import block_store
from target_service.kv_tier.fetching import Fetching
from target_service.kv_tier.tier import KVTier
from target_service.kv_tier.write_behind import WriteBehind
from target_service.schedule import Schedule, tuned_budget
from target_service.service import Batcher, TargetService, record_forward
from target_service.sharing import KVSharing
from target_service.step_time import MOST_ROWS, StepTimes, Tuner, shown

PROG = "target_service"
_log = logging.getLogger(PROG)


async def serve(config: TargetConfig, env: Mapping[str, str]) -> None:
    """Returns after SIGTERM or SIGINT. Raises ConfigError for what only loading can tell."""
    with Telemetry.start("specdec-target", env=env, metrics_port=config.metrics_port) as telemetry:
        metrics = ReplicaMetrics(telemetry)
        replica_id = config.replica_id or f"{os.uname().nodename}:{os.getpid()}"
        tls = read_tls(config.tls_certificate, config.tls_key, config.tls_ca)
        service = TargetService(config, telemetry, metrics, replica_id=replica_id)
        register = partial(target_pb2_grpc.add_TargetServiceServicer_to_server, service)
        server = GrpcServer({"specdec.v1.TargetService": register}, host=config.host, port=config.port, tls=tls)
        with compute_thread("engine") as thread:
            async with server:
                load = partial(load_engine, config, metrics)
                loaded, engine = await asyncio.get_running_loop().run_in_executor(thread, load)
                async with AsyncExitStack() as stack:
                    sharing = await shared(config, metrics, engine, stack)
                    batcher: Batcher = await stack.enter_async_context(
                        MicroBatcher(
                            engine.step,
                            queue_limit=config.queue_limit,
                            thread=thread,
                            patience=service.patience,
                            parked=lambda job: job.parked,
                        )
                    )
                    service.open(loaded, engine, batcher, sharing)
                    health = watch_health(
                        server,
                        engine,
                        batcher,
                        draining=lambda: service.draining,
                        stuck_after=config.stuck_after,
                    )
                    await stack.enter_async_context(health)
                    settle_garbage()
                    _log.info("serving %s on %s:%d", loaded.name, config.host, server.port)
                    await run_until_signal(server, service.drain, config.drain_grace)


def load_engine(config: TargetConfig, metrics: ReplicaMetrics) -> tuple[LoadedModel, Engine]:
    """Blocking, seconds to minutes; the first forward is behind it. Raises ConfigError."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    loaded = load_model(config.model, dtype=cast(Dtype, config.dtype), device=config.device, network=config.network)
    max_context = config.context_limit(loaded.max_context)
    schedule = tuned(config, loaded, max_context)
    limits = EngineLimits(
        token_budget=schedule.budget,
        max_nodes=config.max_nodes,
        max_context=max_context,
        max_sessions=config.max_sessions,
    )
    runner = Runner(loaded, config.kv_tokens)
    engine = Engine(runner, limits, schedule=schedule, report=partial(record_forward, metrics))
    engine.probe()
    return loaded, engine


async def shared(
    config: TargetConfig, metrics: ReplicaMetrics, engine: Engine, stack: AsyncExitStack
) -> KVSharing | None:
    """What the engine shares with other verifiers, if there is a store for it; its tier ends with `stack`. Raises
    ConfigError."""
    if config.kv_store_url is None:
        return None
    connect = block_store(config.kv_store_url, ttl=config.kv_store_ttl, timeout=config.kv_store_timeout)
    frame = BlockFrame(engine.exchange.identity, engine.exchange.block_bytes)
    if config.kv_store_queue_bytes < frame.size:
        remedy = f"must be at least {frame.size}, one block of this model"
        raise ConfigError("kv_store_queue_bytes", config.kv_store_queue_bytes, remedy)
    writes = WriteBehind(
        queue_bytes=config.kv_store_queue_bytes,
        budget_bytes=config.kv_store_bytes,
        ttl=config.kv_store_ttl,
        count=lambda outcome: metrics.kv_store_blocks.add(direction="write", outcome=outcome),
    )
    fetching = Fetching(
        engine.exchange.identity,
        engine.exchange.block_bytes,
        writes,
        count=lambda outcome: metrics.kv_store_blocks.add(direction="read", outcome=outcome),
    )
    metrics.kv_store_queue_bytes.set(lambda: writes.waiting_bytes)
    tier = await stack.enter_async_context(KVTier(connect, frame, writes, fetching))
    return KVSharing(tier, engine.exchange, engine.schedule, partial(metrics.kv_hit_tokens.add, tier="store"))


def tuned(config: TargetConfig, loaded: LoadedModel, max_context: int) -> Schedule:
    """Who gets how many rows, by what this machine's forwards take. Measured over KV of its own, given back before the
    engine takes its: what is written there belongs to no context."""
    whole = config.max_nodes + 1
    if not config.tune_seconds:
        return Schedule(config.token_budget or UNTUNED_BUDGET, whole)
    tuner = Tuner(
        Runner(loaded, max_context),
        config.tune_seconds,
        most_rows=config.token_budget or MOST_ROWS,
        nodes=whole,
        max_context=max_context,
    )
    table = tuner.table()
    budget = config.token_budget or tuned_budget(table, whole)
    schedule = Schedule(budget, whole, StepTimes(table), config.step_target)
    _log.info("%s; token budget %d, step target %.3f s", shown(table), budget, schedule.step_target)
    return schedule


def main() -> None:
    config = load_config(TargetConfig, sys.argv[1:], os.environ, PROG)
    try:
        configure_logging("target")
        asyncio.run(serve(config, os.environ))
    except ConfigError as error:
        exit_with(error, PROG)


if __name__ == "__main__":
    main()
