"""The round trip of gRPC alone: one bidirectional stream to an echo server in a process of its own.

python -m benchmarks.echo      serves, and prints its port"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

METHOD = "/specdec.benchmark.Echo/Echo"
ROUND_TRIPS = 40
MESSAGE = bytes(120)  # about a y-form message


def echo_round_trip(pause: float) -> float:
    """Median seconds of a round trip, each after `pause` seconds of silence."""
    command = [sys.executable, "-m", "benchmarks.echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None, "its output was asked for"
        try:
            return asyncio.run(_measure(int(server.stdout.readline()), pause))
        finally:
            server.kill()


async def _measure(port: int, pause: float) -> float:
    clock = asyncio.get_running_loop().time
    times = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream(METHOD)()
        for _ in range(ROUND_TRIPS):
            if pause:
                await asyncio.sleep(pause)
            start = clock()
            await call.write(MESSAGE)
            await call.read()
            times.append(clock() - start)
        call.cancel()
    return statistics.median(times)


async def _serve() -> None:
    async def echo(messages: AsyncIterator[bytes], context: Any) -> None:
        async for message in messages:
            await context.write(message)

    service, _, name = METHOD[1:].partition("/")
    handlers: dict[str, Any] = {name: grpc.stream_stream_rpc_method_handler(echo)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
