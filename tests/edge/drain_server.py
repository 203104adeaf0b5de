"""A process with an echo service: `python -m tests.edge.drain_server GRACE` prints its port, serves until a signal,
and prints what it did."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from specdec.edge.server import GrpcServer, run_until_signal
from tests.edge.echo import SERVICE, register


async def main(grace: float) -> None:
    async def script(_: Any) -> None:
        return

    async with GrpcServer({SERVICE: register(script)}, port=0, host="127.0.0.1") as server:
        await server.set_serving(True)
        print(server.port, flush=True)

        async def drain() -> None:
            print(f"draining {server.active_calls}", flush=True)

        await run_until_signal(server, drain, grace)
        print(f"stopped {server.active_calls}", flush=True)


asyncio.run(main(float(sys.argv[1])))
