"""`python -m specdec.edge.health`: whether the process of this container can serve, by grpc.health.v1 on its own port.
Exit code 0: it does; else a sentence says why not.

For orchestrators that run a command, and where their own gRPC probes speak no TLS. It reads the environment that the
process was given: PORT, and TLS_CERTIFICATE, TLS_KEY and TLS_CA where it serves over TLS."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.core.errors import ConfigError
from specdec.edge.channel import open_channel
from specdec.edge.config import exit_with, load_config
from specdec.edge.tls import CA_OPTION, CERTIFICATE_OPTION, KEY_OPTION, Tls, read_tls

PROG = "specdec.edge.health"


@dataclass(frozen=True, slots=True)
class HealthConfig:
    port: int = field(metadata={"help": "gRPC port on this host", "ge": 1, "le": 65535})
    health_service: str = field(
        default="", metadata={"help": "name that grpc.health.v1 is asked for; empty: the process"}
    )
    health_timeout: float = field(default=3.0, metadata={"help": "seconds", "ge": 0.001})
    tls_certificate: str | None = field(default=None, metadata=CERTIFICATE_OPTION)
    tls_key: str | None = field(default=None, metadata=KEY_OPTION)
    tls_ca: str | None = field(default=None, metadata=CA_OPTION)
    health_tls_name: str | None = field(
        default=None, metadata={"help": "name in the process' certificate; unset: 127.0.0.1"}
    )


async def trouble(address: str, service: str, timeout: float, tls: Tls | None, name: str | None) -> str | None:
    """Why it does not serve; None: it does. name: in its certificate, None: the address."""
    async with open_channel(address, tls=tls, server_name=name) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            # A channel of ours gives an attempt to connect a tenth of a second, which a busy host may take.
            reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            return f"{address}: {error.code().name}: {error.details()}"
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)}"


def main() -> None:
    config = load_config(HealthConfig, sys.argv[1:], os.environ, PROG)
    try:
        # A replica may ask whoever connects for a certificate: we show its own. One that shows none serves in clear.
        tls = read_tls(config.tls_certificate, config.tls_key, config.tls_ca) if config.tls_certificate else None
    except ConfigError as error:
        exit_with(error, PROG)
    address = f"127.0.0.1:{config.port}"
    name = config.health_tls_name
    sys.exit(asyncio.run(trouble(address, config.health_service, config.health_timeout, tls, name)))


if __name__ == "__main__":
    main()
