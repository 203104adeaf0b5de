"""`python -m tests.end_to_end.prober ADDRESS`: liveness probes as a kubelet sends them, until it is ended, in a process
of its own, so that the work of whoever tests delays none. Beside each it asks an idle server in this process, which
tells what the machine itself delays. One line a probe: status, seconds, seconds of the idle server."""

from __future__ import annotations

import asyncio
import sys
import time

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.edge.server import LIVE, GrpcServer

PERIOD = 0.5
DEADLINE = 30.0  # seconds: how late it is, is for others to judge


async def ask(address: str) -> tuple[str, float]:
    begun = time.monotonic()
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=LIVE)
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE, wait_for_ready=True)
            status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        except grpc.aio.AioRpcError as error:
            status = error.code().name
    return status, time.monotonic() - begun


async def main(address: str) -> None:
    async with GrpcServer({}, host="127.0.0.1", port=0) as idle:
        await idle.set_serving(True)
        while True:
            (status, seconds), (_, usual) = await asyncio.gather(ask(address), ask(f"127.0.0.1:{idle.port}"))
            print(status, f"{seconds:.3f}", f"{usual:.3f}", flush=True)
            await asyncio.sleep(PERIOD)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
