"""Blocks from the store, in chain order and each only once at a time."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from specdec.lm.exchange import BlockKey
from specdec.lm.prefix_cache import Digest
from target_service.kv_tier.block_format import BlockRefused, unpack
from target_service.kv_tier.block_store import BlockStore
from target_service.kv_tier.pace import FetchPace
from target_service.kv_tier.write_behind import WriteBehind, name_of

GROUP = 8  # blocks of one trip
AT_ONCE = 2  # trips under way

Content = NDArray[np.uint8]

_log = logging.getLogger(__name__)


class Fetching:
    """On the loop of the store. Contexts that share a beginning share its trips. count: told the outcome of each block
    asked for, one of loaded, missed, refused (it was not what its name says), failed."""

    def __init__(
        self,
        identity: str,
        block_bytes: int,
        writes: WriteBehind,
        *,
        count: Callable[[str], None] = lambda outcome: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pace = FetchPace(block_bytes, clock)
        self._identity = identity
        self._writes = writes
        self._count = count
        self._clock = clock
        self._flights: dict[Digest, asyncio.Future[Content | None]] = {}
        self._last = -math.inf  # end of the last trip

    async def fetch(self, store: BlockStore, keys: Sequence[BlockKey], within: float) -> list[Content]:
        """Contents of `keys`, from the first on, as far as the store has them without a gap and gives them within so
        many seconds. While one trip's blocks are looked through the next one is under way."""
        contents: list[Content] = []
        begun = self._clock()
        try:
            async with asyncio.timeout(within), asyncio.TaskGroup() as trips:
                groups = (keys[first : first + GROUP] for first in range(0, len(keys), GROUP))
                started = (trips.create_task(self._group(store, group)) for group in groups)
                under_way = deque(islice(started, AT_ONCE))
                while under_way:
                    group = await under_way.popleft()
                    whole = next((i for i, content in enumerate(group) if content is None), len(group))
                    contents += [content for content in group[:whole] if content is not None]
                    if whole < len(group):
                        for trip in under_way:
                            trip.cancel()
                        break
                    under_way.extend(islice(started, 1))
        except TimeoutError:
            _log.info("%d of %d KV blocks came in time", len(contents), len(keys))
            self.pace.observe(len(contents) + 1, self._clock() - begun)  # the next one at least was on its way
        return contents

    async def _group(self, store: BlockStore, keys: Sequence[BlockKey]) -> list[Content | None]:
        loop = asyncio.get_running_loop()
        mine = [key for key in keys if key.digest not in self._flights]
        flights = {key.digest: self._flights.get(key.digest) or loop.create_future() for key in keys}
        self._flights |= {key.digest: flights[key.digest] for key in mine}
        try:
            if mine:
                for key, content in zip(mine, await self._read(store, mine), strict=True):
                    flights[key.digest].set_result(content)
        finally:
            for key in mine:
                del self._flights[key.digest]
                if not flights[key.digest].done():
                    flights[key.digest].set_result(None)
        # Shielded: to give up another's trip is not to give it up for the others.
        return [await asyncio.shield(flights[key.digest]) for key in keys]

    async def _read(self, store: BlockStore, keys: Sequence[BlockKey]) -> list[Content | None]:
        begun = self._clock()
        try:
            values = await store.get([name_of(key.digest) for key in keys])
            contents = [await self._content(store, key, value) for key, value in zip(keys, values, strict=True)]
        except Exception as error:  # whatever a store may raise: to have no KV costs a prefill, nothing else
            self._writes.failed(error)
            for _ in keys:
                self._count("failed")
            return [None] * len(keys)
        ended = self._clock()
        if loaded := sum(value is not None for value in values):
            self.pace.observe(loaded, ended - max(begun, self._last))  # trips overlap
        self._last = ended
        return contents

    async def _content(self, store: BlockStore, key: BlockKey, value: bytes | None) -> Content | None:
        if value is None:
            self._writes.gone(key.digest)
            self._count("missed")
            return None
        try:
            content = unpack(self._identity, key, value)
        except BlockRefused as refused:
            _log.warning("%s: deleted, to be computed again", refused)
            self._writes.gone(key.digest)
            self._count("refused")
            await store.delete(name_of(key.digest))
            return None
        self._writes.found(key.digest)
        self._count("loaded")
        return content
