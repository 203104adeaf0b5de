"""`python -m target_service`: one verifier replica. `--help` lists the flags; the environment has their names too."""

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
from specdec.edge.batcher import MicroBatcher
from specdec.edge.config import exit_with, load_config
from specdec.edge.logging import configure_logging
from specdec.edge.server import GrpcServer, run_until_signal
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.lm.loading import Dtype, LoadedModel, load_model
from specdec.lm.runner import Runner
from target_service.config import TargetConfig
from target_service.engine import Engine, EngineLimits, ForwardReport
from target_service.service import Batcher, TargetService

PROG = "target_service"
_log = logging.getLogger(PROG)


async def serve(config: TargetConfig, env: Mapping[str, str]) -> None:
    """Returns after SIGTERM or SIGINT. Raises ConfigError for what only loading can tell."""
    with Telemetry.start("specdec-target", env=env, metrics_port=config.metrics_port) as telemetry:
        metrics = ReplicaMetrics(telemetry)
        replica_id = config.replica_id or f"{os.uname().nodename}:{os.getpid()}"
        service = TargetService(config, telemetry, metrics, replica_id=replica_id)
        register = partial(target_pb2_grpc.add_TargetServiceServicer_to_server, service)
        async with GrpcServer({"specdec.v1.TargetService": register}, host=config.host, port=config.port) as server:
            loaded = await asyncio.to_thread(load, config)
            engine = build_engine(config, loaded, metrics)
            batcher: Batcher = MicroBatcher(engine.step, queue_limit=config.queue_limit, name="forward")
            async with batcher:
                service.open(engine, batcher, loaded)
                await server.set_serving(True)
                _log.info("serving %s (%s) on %s:%d", loaded.name, loaded.dtype, config.host, server.port)
                await run_until_signal(server, service.drain, config.drain_grace)


def load(config: TargetConfig) -> LoadedModel:
    """Blocking. Raises ConfigError."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return load_model(config.model, dtype=cast(Dtype, config.dtype), device=config.device)


def build_engine(config: TargetConfig, loaded: LoadedModel, metrics: ReplicaMetrics) -> Engine:
    limits = EngineLimits(
        token_budget=config.token_budget,
        max_nodes=config.max_nodes,
        max_context=min(config.max_context or loaded.max_context, loaded.max_context),
        max_sessions=config.max_sessions,
    )

    def count(report: ForwardReport) -> None:
        metrics.forwards.add()
        metrics.rows.add(report.rows)
        metrics.batch_size.record(report.jobs)
        metrics.compute_seconds.record(report.seconds)
        metrics.draws.add(report.draws)
        metrics.kv_hit_tokens.add(report.kv_hits, tier="session")

    return Engine(Runner(loaded, config.kv_tokens), limits, report=count)


def main() -> None:
    config = load_config(TargetConfig, sys.argv[1:], os.environ, PROG)
    try:
        configure_logging("target")
        asyncio.run(serve(config, os.environ))
    except ConfigError as error:
        exit_with(error, PROG)


if __name__ == "__main__":
    main()
