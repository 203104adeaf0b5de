"""The client for code without asyncio: the same calls, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import aclosing
from threading import Thread
from types import TracebackType
from typing import Any, Self, Unpack

from protos import generation_pb2
from specdec.edge.client import GENERATE_DEADLINE, INFO_DEADLINE, PATIENCE, Client, GenerateFields
from specdec.edge.received import Event
from specdec.edge.tls import Tls


class BlockingClient:
    """As `Client`, which see. Use as `with`; from any threads.

    with BlockingClient("127.0.0.1:50050") as client:
        for event in client.generate(text="Once upon a time", max_tokens=64):
            ..."""

    def __init__(
        self, address: str, *, patience: float = PATIENCE, api_key: str | None = None, tls: Tls | None = None
    ) -> None:
        self._client = Client(address, patience=patience, api_key=api_key, tls=tls)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="specdec-client", daemon=True)
        self._thread.start()
        self._wait(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait(self._client.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def info(self, *, deadline: float = INFO_DEADLINE) -> generation_pb2.ServiceInfo:
        info: generation_pb2.ServiceInfo = self._wait(self._client.info(deadline=deadline))
        return info

    def generate(
        self, *, deadline: float = GENERATE_DEADLINE, **fields: Unpack[GenerateFields]
    ) -> Generator[Event, None, None]:
        """Leaving the loop early cancels the call, once the generator is closed or collected."""
        events = self._client.generate(deadline=deadline, **fields)
        try:
            while (event := self._wait(anext(events, None))) is not None:
                yield event
        finally:
            self._wait(_closed(events))

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()


async def _awaited(work: Any) -> Any:
    return await work


async def _closed(events: Any) -> None:
    async with aclosing(events):
        return
