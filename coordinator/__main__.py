"""`python -m coordinator`: wires the coordinator together and serves until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from coordinator.compatibility import check_for, fitting
from coordinator.config import CoordinatorConfig
from coordinator.keys import Keys
from coordinator.pool import Pool
from coordinator.readiness import watch_readiness
from coordinator.service import GenerationServicer
from coordinator.store import SessionStore, open_store
from coordinator.tokenizer import TextCodec
from protos import generation_pb2_grpc
from specdec.core.errors import ConfigError
from specdec.edge.channel import open_channel
from specdec.edge.config import exit_with, load_config
from specdec.edge.garbage import settle_garbage
from specdec.edge.logging import configure_logging
from specdec.edge.server import GrpcServer, run_until_signal
from specdec.edge.telemetry import CoordinatorMetrics, Telemetry
from specdec.edge.tls import read_tls

SERVICE = "specdec.v1.GenerationService"
CONNECTION_AGE = 600.0  # seconds: clients behind one name find new coordinators

log = logging.getLogger("coordinator")


async def serve(config: CoordinatorConfig) -> None:
    codec = await asyncio.to_thread(TextCodec.load, config.model)
    tls = read_tls(config.tls_certificate, config.tls_key, config.tls_ca)
    keys = Keys.read(config.api_keys)
    connect = partial(open_channel, tls=tls, server_name=config.tls_replica_name)
    with Telemetry.start("specdec-coordinator", env=os.environ, metrics_port=config.metrics_port) as telemetry:
        metrics = CoordinatorMetrics(telemetry)
        async with (
            opened_store(config) as store,
            Pool("target", config.target_addresses, check_for("target", codec), metrics, connect=connect) as targets,
            Pool(
                "draft",
                config.draft_addresses,
                check_for("draft", codec),
                metrics,
                narrow=fitting(targets.infos),
                connect=connect,
            ) as drafters,
        ):
            servicer = GenerationServicer(config, codec, store, targets, drafters, telemetry, metrics, keys)
            register = partial(generation_pb2_grpc.add_GenerationServiceServicer_to_server, servicer)
            server = GrpcServer(
                {SERVICE: register},
                host=config.host,
                port=config.port,
                max_connection_age=CONNECTION_AGE,
                tls=tls if config.tls_certificate else None,
                clients=config.tls_clients,
            )
            async with server, watch_readiness(server, targets, store, metrics):
                settle_garbage()
                log.info("serving on %s:%d", config.host, server.port)
                await run_until_signal(server, drain=_nothing, grace=config.drain_grace)


@asynccontextmanager
async def opened_store(config: CoordinatorConfig) -> AsyncIterator[SessionStore]:
    store = open_store(
        config.session_store_url, ttl=config.session_ttl, lease=config.session_lease, deadline=config.store_deadline
    )
    try:
        yield store
    finally:
        await store.close()


async def _nothing() -> None:
    """Running generations finish within the grace; what is left is cancelled and can be resumed elsewhere."""


def main() -> None:
    config = load_config(CoordinatorConfig, sys.argv[1:], os.environ, "coordinator")
    configure_logging("coordinator")
    try:
        asyncio.run(serve(config))
    except ConfigError as error:
        exit_with(error, "coordinator")


if __name__ == "__main__":
    main()
