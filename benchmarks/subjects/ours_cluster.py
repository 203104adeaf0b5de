"""Ours whole: coordinator, drafter and verifier as three processes on loopback, asked as its clients do.

python -m benchmarks.subjects.ours_cluster LOG_FOLDER FLAG...

FLAG: as of `specdec up`. A second coordinator reaches the drafter over a line whose round trip each request chooses."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from benchmarks.delay import DelayProxy, delayed
from benchmarks.subjects.protocol import Handlers, serve
from protos.generation_pb2 import Chunk, Complete, DraftStats
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster, Member
from specdec.edge.commands import up
from specdec.edge.cores import openmp_environment, usable_cores
from specdec.edge.process import ChildProcess

READY_SECONDS = 60.0
RAMP = 0.2  # of the seconds that a load is counted, before that
COUNTED = ("cycles", "drafts", "draft_tokens", "accepted_tokens", "exact_alpha_sum", "exact_alpha_count")
PARTS = ("draft_seconds", "verify_seconds", "commit_seconds", "decode_seconds")
T = TypeVar("T")


class OursCluster:
    """Its event loop runs in a thread of its own: connections live on while no command is served."""

    def __init__(self, logs: Path, flags: list[str]) -> None:
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        self._exits = AsyncExitStack()
        self._do(self._start(logs, flags))

    def handlers(self) -> Handlers:
        return {"generate": self.generate, "load": self.load, "about": self.about}

    def pids(self) -> list[int]:
        return [member.process.pid for member in self._cluster.members]

    def close(self) -> None:
        self._do(self._exits.aclose())

    def about(self) -> dict[str, Any]:
        info = self._do(self._ready(self._cluster.address))
        return {"drafters": list(info.drafters), "max_draft_tokens": int(info.config["max_draft_tokens"])}

    def generate(
        self, prompts: list[list[int]], new_tokens: int, round_trip: float | None = None, **fields: Any
    ) -> dict[str, Any]:
        """All prompts at once. round_trip: seconds to the drafter, None: loopback's own. fields: of the request. Before
        the clock starts, processes that were stopped have found each other again."""
        address = self._cluster.address
        if round_trip is not None:
            address, self._proxy.round_trip = f"127.0.0.1:{self._far_port}", round_trip
        return self._do(self._generate(address, prompts, new_tokens, fields))

    def load(
        self, prompts: list[list[int]], new_tokens: int, sessions: int, seconds: float, **fields: Any
    ) -> dict[str, Any]:
        """So many sessions at all times: each client asks one prompt after the other, beginning with another than its
        neighbour. First answers are cut to different lengths, so that from then on clients end one after the other, as
        callers do, and not all in one cycle. What came is counted for `seconds`, from some time after they began."""
        return self._do(self._load(prompts, new_tokens, sessions, seconds, fields))

    async def _start(self, logs: Path, flags: list[str]) -> None:
        parser = argparse.ArgumentParser()
        up.add_arguments(parser)
        spec = await up.cluster_spec(parser.parse_args(["--port", "0", *flags]))
        cluster = Cluster(spec, logs, lambda line: print(line, file=sys.stderr, flush=True))
        self._cluster: Cluster = await self._exits.enter_async_context(cluster)
        verifiers, drafters = [
            [member for member in cluster.members if member.process.name.startswith(role)]
            for role in ("verifier", "drafter")
        ]
        self._proxy: DelayProxy = await self._exits.enter_async_context(delayed(_port(drafters[0])))
        arguments = ["--model", spec.target, "--port", "0", "--host", "127.0.0.1"]
        arguments += ["--target-addresses", verifiers[0].address]
        arguments += ["--draft-addresses", f"127.0.0.1:{self._proxy.port}"]
        self._far_log = logs / "far-coordinator.log"
        cores = usable_cores()
        far = ChildProcess(
            "far-coordinator",
            "coordinator",
            arguments,
            log_file=self._far_log,
            cores=cores,
            environment=openmp_environment(len(cores)),
        )
        await far.start()
        self._exits.push_async_callback(far.stop, 5.0)
        self._far_port = await _announced_port(self._far_log)

    async def _generate(
        self, address: str, prompts: list[list[int]], new_tokens: int, fields: dict[str, Any]
    ) -> dict[str, Any]:
        await self._ready(address)
        async with Client(address) as client:
            await _one(client, prompts[0][:4], 2, {"num_draft_tokens": 0})
            begun = time.perf_counter()
            answers = await asyncio.gather(*(_one(client, prompt, new_tokens, fields) for prompt in prompts))
        seconds = time.perf_counter() - begun
        stats = [stats for _, stats in answers]
        return {
            "seconds": seconds,
            "tokens": [tokens for tokens, _ in answers],
            **{name: sum(getattr(s, name) for s in stats) for name in (*COUNTED, *PARTS)},
        }

    async def _load(
        self, prompts: list[list[int]], new_tokens: int, sessions: int, seconds: float, fields: dict[str, Any]
    ) -> dict[str, Any]:
        await self._ready(self._cluster.address)
        came = 0

        async def ask_on(client: Client, first: int) -> None:
            nonlocal came
            for number in count(first):
                prompt = prompts[number % len(prompts)]
                length = new_tokens if number > first else max(1, new_tokens * (first + 1) // sessions)
                async for event in client.generate(**_request(prompt, length, fields)):
                    came += len(event.tokens) if isinstance(event, Chunk) else 0

        async with Client(self._cluster.address) as client, asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(ask_on(client, first)) for first in range(sessions)]
            await asyncio.sleep(RAMP * seconds)
            before, begun = came, time.perf_counter()
            await asyncio.sleep(seconds)
            tokens, taken = came - before, time.perf_counter() - begun
            for task in clients:
                task.cancel()
        return {"seconds": taken, "count": tokens}

    async def _ready(self, address: str) -> Any:
        end = time.monotonic() + READY_SECONDS
        while True:
            async with Client(address) as client:
                info = await client.info()
            if info.ready_drafters and info.ready_verifiers:
                return info
            if time.monotonic() > end:
                raise RuntimeError(f"{info.ready_verifiers} verifiers and {info.ready_drafters} drafters are ready")
            await asyncio.sleep(0.1)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _one(
    client: Client, prompt: list[int], new_tokens: int, fields: dict[str, Any]
) -> tuple[list[int], DraftStats]:
    tokens, stats = [], DraftStats()
    async with aclosing(client.generate(**_request(prompt, new_tokens, fields))) as events:
        async for event in events:
            if isinstance(event, Chunk):
                tokens += [token.id for token in event.tokens]
            elif isinstance(event, Complete):
                stats = event.draft_stats
    return tokens, stats


def _request(prompt: list[int], new_tokens: int, fields: dict[str, Any]) -> dict[str, Any]:
    usual: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0}
    return {**usual, **fields, "token_ids": prompt, "max_tokens": new_tokens, "ignore_eos": True}


def _port(member: Member) -> int:
    return int(member.address.rpartition(":")[2])


async def _announced_port(log: Path) -> int:
    """Of a coordinator that was told to take any."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        text = await asyncio.to_thread(log.read_text)
        if "serving on 127.0.0.1:" in text:
            return int(text.partition("serving on 127.0.0.1:")[2].split()[0])
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the second coordinator did not come up: {text[-400:]}")


if __name__ == "__main__":
    running: list[OursCluster] = []

    def load() -> Handlers:
        running.append(OursCluster(Path(sys.argv[1]), sys.argv[2:]))
        return running[0].handlers()

    try:
        serve(load, lambda: running[0].pids())
    finally:
        for one in running:
            one.close()
