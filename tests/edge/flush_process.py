"""`python -m tests.edge.flush_process BUDGET`: makes 100 spans, says so, and on SIGTERM leaves with what telemetry
the environment asks for."""

from __future__ import annotations

import asyncio
import os
import sys

from specdec.edge.server import GrpcServer, run_until_signal
from specdec.edge.telemetry import CoordinatorMetrics, Telemetry


async def main(telemetry: Telemetry) -> None:
    async def nothing() -> None:
        return

    async with GrpcServer({}, port=0, host="127.0.0.1") as server:
        CoordinatorMetrics(telemetry)
        for n in range(100):
            with telemetry.span("work", attributes={"n": n}):
                pass
        # Printed once the signal is listened to: at the first await below.
        asyncio.get_running_loop().call_soon(lambda: print("ready", flush=True))
        await run_until_signal(server, nothing, grace=5)


with Telemetry.start("flusher", env=os.environ) as telemetry:
    telemetry.flush_budget = float(sys.argv[1])
    asyncio.run(main(telemetry))
