"""`python -m target_service`: one verifier replica. `--help` lists the flags; environment variables have the same
names."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import cast

import torch

from protos import target_pb2_grpc
from specdec.core.errors import ConfigError
from specdec.edge.batcher import MicroBatcher, compute_thread
from specdec.edge.config import exit_with, load_config
from specdec.edge.logging import configure_logging
from specdec.edge.server import GrpcServer, run_until_signal
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.lm.loading import Dtype, LoadedModel, load_model
from specdec.lm.runner import Runner
from target_service.config import TargetConfig
from target_service.engine import Engine, EngineLimits
from target_service.health import watch_health
from target_service.service import Batcher, TargetService, record_forward

PROG = "target_service"
_log = logging.getLogger(PROG)


async def serve(config: TargetConfig, env: Mapping[str, str]) -> None:
    """Returns after SIGTERM or SIGINT. Raises ConfigError for what only loading can tell."""
    with Telemetry.start("specdec-target", env=env, metrics_port=config.metrics_port) as telemetry:
        metrics = ReplicaMetrics(telemetry)
        replica_id = config.replica_id or f"{os.uname().nodename}:{os.getpid()}"
        service = TargetService(config, telemetry, metrics, replica_id=replica_id)
        register = partial(target_pb2_grpc.add_TargetServiceServicer_to_server, service)
        server = GrpcServer({"specdec.v1.TargetService": register}, host=config.host, port=config.port)
        with compute_thread("engine") as thread:
            async with server:
                load = partial(load_engine, config, metrics)
                loaded, engine = await asyncio.get_running_loop().run_in_executor(thread, load)
                batcher: Batcher
                async with MicroBatcher(engine.step, queue_limit=config.queue_limit, thread=thread) as batcher:
                    service.open(loaded, engine, batcher)
                    health = watch_health(
                        server,
                        engine,
                        batcher,
                        draining=lambda: service.draining,
                        stuck_after=config.stuck_after,
                    )
                    async with health:
                        _log.info("serving %s on %s:%d", loaded.name, config.host, server.port)
                        await run_until_signal(server, service.drain, config.drain_grace)


def load_engine(config: TargetConfig, metrics: ReplicaMetrics) -> tuple[LoadedModel, Engine]:
    """Blocking, seconds to minutes; the first forward is behind it. Raises ConfigError."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    loaded = load_model(config.model, dtype=cast(Dtype, config.dtype), device=config.device)
    limits = EngineLimits(
        token_budget=config.token_budget,
        max_nodes=config.max_nodes,
        max_context=config.context_limit(loaded.max_context),
        max_sessions=config.max_sessions,
    )
    engine = Engine(Runner(loaded, config.kv_tokens), limits, report=partial(record_forward, metrics))
    engine.probe()
    return loaded, engine


def main() -> None:
    config = load_config(TargetConfig, sys.argv[1:], os.environ, PROG)
    try:
        configure_logging("target")
        asyncio.run(serve(config, os.environ))
    except ConfigError as error:
        exit_with(error, PROG)


if __name__ == "__main__":
    main()
