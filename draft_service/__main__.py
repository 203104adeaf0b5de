"""`python -m draft_service`: one drafter replica. `--help` lists the flags; environment variables have their names."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial

from draft_service.config import DraftConfig
from draft_service.drafters import DRAFTERS, Drafter, DraftModel
from draft_service.health import watch_health
from draft_service.lane import Lane
from draft_service.service import DraftService
from protos import draft_pb2_grpc
from specdec.core.errors import ConfigError
from specdec.edge.batcher import compute_thread
from specdec.edge.config import exit_with, load_config
from specdec.edge.garbage import settle_garbage
from specdec.edge.logging import configure_logging
from specdec.edge.server import GrpcServer, run_until_signal
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.edge.tls import read_tls

PROG = "draft_service"
_log = logging.getLogger(PROG)


async def serve(config: DraftConfig, env: Mapping[str, str]) -> None:
    """Returns after SIGTERM or SIGINT. Raises ConfigError for what only loading can tell."""
    with Telemetry.start("specdec-draft", env=env, metrics_port=config.metrics_port) as telemetry:
        metrics = ReplicaMetrics(telemetry)
        replica_id = config.replica_id or f"{os.uname().nodename}:{os.getpid()}"
        tls = read_tls(config.tls_certificate, config.tls_key, config.tls_ca)
        service = DraftService(config, telemetry, metrics, replica_id=replica_id)
        register = partial(draft_pb2_grpc.add_DraftServiceServicer_to_server, service)
        server = GrpcServer({"specdec.v1.DraftService": register}, host=config.host, port=config.port, tls=tls)
        with compute_thread("draft") as thread:
            async with server, AsyncExitStack() as stack:
                load = partial(load_drafters, config, metrics)
                drafters = await asyncio.get_running_loop().run_in_executor(thread, load)
                lanes = {name: lane(name, drafter, config, thread) for name, drafter in drafters.items()}
                for each in lanes.values():
                    await stack.enter_async_context(each)
                service.open(lanes)
                await server.set_serving(True)
                health = watch_health(
                    server, lanes.values(), draining=lambda: service.draining, stuck_after=config.stuck_after
                )
                await stack.enter_async_context(health)
                settle_garbage()
                _log.info("serving %s on %s:%d", ", ".join(lanes), config.host, server.port)
                await run_until_signal(server, service.drain, config.drain_grace)


def lane(name: str, drafter: Drafter, config: DraftConfig, thread: ThreadPoolExecutor) -> Lane:
    """Models compute on the thread that loaded them, one after another; drafters without weights on their own."""
    return Lane(name, drafter, queue_limit=config.queue_limit, thread=thread if drafter.model.fingerprint else None)


def load_drafters(config: DraftConfig, metrics: ReplicaMetrics) -> dict[str, Drafter]:
    """Blocking. Raises ConfigError, also where two of them draft in different vocabularies."""
    drafters = {name: DRAFTERS[name](config, metrics, argument) for name, argument in config.entries.items()}
    check_one_vocabulary({name: drafter.model for name, drafter in drafters.items()})
    return drafters


def check_one_vocabulary(models: Mapping[str, DraftModel]) -> None:
    """Whoever names a vocabulary must name the same: the replica has one Info. Raises ConfigError."""
    named = {name: (m.vocab_size, m.tokenizer_hash) for name, m in models.items() if m.tokenizer_hash}
    for name, vocabulary in named.items():
        first, expected = next(iter(named.items()))
        if vocabulary != expected:
            remedy = (
                f"{first} drafts {expected[0]} ids of tokenizer {expected[1][:12]}, {name} {vocabulary[0]} of "
                f"{vocabulary[1][:12]}: serve them as two replicas, or use --tli"
            )
            raise ConfigError("drafters", f"{first},{name}", remedy)


def main() -> None:
    config = load_config(DraftConfig, sys.argv[1:], os.environ, PROG)
    try:
        configure_logging("draft")
        asyncio.run(serve(config, os.environ))
    except ConfigError as error:
        exit_with(error, PROG)


if __name__ == "__main__":
    main()
