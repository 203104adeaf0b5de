"""The KV tier of one verifier: a thread with a loop of its own, so that no megabyte ever crosses the service's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from specdec.lm.exchange import BlockKey
from specdec.lm.prefix_cache import Digest
from target_service.kv_tier.block_format import BlockFrame
from target_service.kv_tier.block_store import BlockStore
from target_service.kv_tier.fetching import Content, Fetching
from target_service.kv_tier.write_behind import Parcel, WriteBehind

T = TypeVar("T")

CLOSING = 2.0  # seconds for the last blocks at the end


class KVTier:
    """`async with KVTier(...)` around its use. connect: called on the tier's loop.

    What goes wrong with the store is a block that is not stored, or not found: counted, never raised."""

    def __init__(
        self, connect: Callable[[], BlockStore], frame: BlockFrame, writes: WriteBehind, fetching: Fetching
    ) -> None:
        self._connect = connect
        self._frame = frame
        self.writes = writes
        self.fetching = fetching
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="kv-tier", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        self._store, self._writer = await asyncio.wrap_future(self._call(self._begin()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.wrap_future(self._call(self._end()))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def keep(
        self, digests: Sequence[Digest], key: Callable[[int], BlockKey], read: Callable[[Digest, Content], bool]
    ) -> None:
        """Sees to it that the blocks of a context are in the store, some time. key: of the n-th; read: copies one,
        False where it is gone. Only what is not known to be stored is read, and nothing that the queue has no room
        for."""
        for i in self.writes.lacking(digests):
            buffer = self.writes.admit(digests[i], self._frame.size)
            if buffer is None:
                continue
            if read(digests[i], self._frame.content(buffer)):
                self.writes.send(Parcel(digests[i], buffer, partial(self._frame.seal, buffer, key(i))))
            else:
                self.writes.withdraw(digests[i], buffer)

    async def fetch(self, keys: Sequence[BlockKey], within: float) -> list[Content]:
        """What the store has of a context's blocks, from the first on without a gap; see `Fetching`."""
        return await asyncio.wrap_future(self._call(self.fetching.fetch(self._store, keys, within)))

    async def flush(self, within: float) -> bool:
        """Whether all that was offered has been seen to in so many seconds."""
        return await asyncio.wrap_future(self._call(self._flush(within)))

    async def _begin(self) -> tuple[BlockStore, asyncio.Task[None]]:
        store = self._connect()
        return store, asyncio.create_task(self.writes.run(store), name="kv-write-behind")

    async def _end(self) -> None:
        await self._flush(CLOSING)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        await self._store.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _flush(self, within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                await self.writes.flushed()
        except TimeoutError:
            return False
        return True
