"""Blocks on their way to the store, never in the way of a cycle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from specdec.lm.prefix_cache import Digest
from target_service.kv_tier.block_store import BlockStore

KNOWN = 1 << 18  # digests that are remembered as stored
SPARE = 8  # buffers that are kept for the next blocks
LOOK = 1.0  # seconds between two looks at the memory that the store has in use
REST = 1.0  # seconds for which a store that failed is left alone

_log = logging.getLogger(__name__)


def name_of(digest: Digest) -> str:
    return f"specdec:kv:{digest.hex()}"


@dataclass(frozen=True, slots=True)
class Parcel:
    """buffer: what was admitted for it, sent whole; seal: called on the loop of the store before that."""

    digest: Digest
    buffer: bytearray
    seal: Callable[[], None]


class WriteBehind:
    """`lacking`, `admit`, `send` and `withdraw` are called from any thread, the rest on the loop of the store.

    queue_bytes: of blocks that wait at most; with more, new ones are dropped: to store them is never worth a delay.
    budget_bytes: memory that the store may have in use for more to be written, None: no limit of ours. ttl: seconds
    that it keeps a block. count: told the outcome of each block, one of stored, known (someone else had or was storing
    it), dropped (queue full), over_budget, failed."""

    def __init__(
        self,
        *,
        queue_bytes: int,
        budget_bytes: int | None,
        ttl: float,
        count: Callable[[str], None] = lambda outcome: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue_bytes = queue_bytes
        self._budget = budget_bytes
        self._ttl = ttl
        self._count = count
        self._clock = clock
        self._lock = Lock()
        self._known: OrderedDict[Digest, float] = OrderedDict()  # when it was surely there
        self._stale: dict[Digest, None] = {}  # to be refreshed
        self._waiting = 0  # bytes
        self._spare: list[bytearray] = []  # memory that was never touched costs more than the copy
        self._parcels: asyncio.Queue[Parcel] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._used, self._looked = 0, -LOOK
        self._resting_until = 0.0

    @property
    def waiting_bytes(self) -> int:
        return self._waiting

    @property
    def resting(self) -> bool:
        """Whether the store failed a moment ago."""
        return self._clock() < self._resting_until

    def lacking(self, digests: Sequence[Digest]) -> list[int]:
        """Which of them are not known to be in the store, by index. Those that may soon be gone are refreshed."""
        now, lacking = self._clock(), []
        with self._lock:
            for i, digest in enumerate(digests):
                seen = self._known.get(digest)
                if seen is None:
                    lacking.append(i)
                elif now - seen > self._ttl / 2:
                    self._stale[digest] = None
        return lacking

    def admit(self, digest: Digest, size: int) -> bytearray | None:
        """A buffer for a block of `size` bytes, which is to be sent or withdrawn; None: the queue is full, or the store
        rests."""
        with self._lock:
            admitted = self._waiting + size <= self._queue_bytes and not self.resting and self._loop is not None
            spare = self._spare.pop() if admitted and self._spare else None
            if admitted:
                self._waiting += size
                self._remember(digest)
        if not admitted:
            self._count("dropped")
            return None
        return spare if spare is not None and len(spare) == size else bytearray(size)

    def send(self, parcel: Parcel) -> None:
        """What was admitted."""
        assert self._loop is not None, "nothing is admitted before the loop runs"
        self._loop.call_soon_threadsafe(self._parcels.put_nowait, parcel)

    def withdraw(self, digest: Digest, buffer: bytearray) -> None:
        """It was admitted, and will not be sent."""
        with self._lock:
            self._waiting -= len(buffer)
            self._known.pop(digest, None)

    def found(self, digest: Digest) -> None:
        """The store has it: it was read."""
        with self._lock:
            self._remember(digest)

    def gone(self, digest: Digest) -> None:
        """The store does not have it, or not soundly."""
        with self._lock:
            self._known.pop(digest, None)

    async def run(self, store: BlockStore) -> None:
        """Until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            parcel = await self._parcels.get()
            try:
                outcome = await self._written(store, parcel)
            except Exception as error:  # whatever a store may raise: this block is not stored, and that is all
                outcome = "failed"
                self.failed(error)
            finally:
                with self._lock:
                    self._waiting -= len(parcel.buffer)
            if outcome != "failed" and len(self._spare) < SPARE:  # after a failure it may still be on its way
                self._spare.append(parcel.buffer)
            if outcome not in ("stored", "known"):
                self.gone(parcel.digest)
            self._count(outcome)
            self._parcels.task_done()

    async def flushed(self) -> None:
        """Once all that was sent so far is stored or given up."""
        await self._parcels.join()

    def failed(self, error: Exception) -> None:
        """The store is left alone for a while."""
        if not self.resting:
            _log.warning("the KV store failed and rests for %.0f s: %r", REST, error)
        self._resting_until = self._clock() + REST

    async def _written(self, store: BlockStore, parcel: Parcel) -> str:
        if self.resting:
            return "dropped"
        if self._stale:
            await self._refresh(store)
        if await self._over_budget(store):
            return "over_budget"
        parcel.seal()
        self._used += len(parcel.buffer)
        return "stored" if await store.put(name_of(parcel.digest), memoryview(parcel.buffer)) else "known"

    async def _refresh(self, store: BlockStore) -> None:
        with self._lock:
            digests, self._stale = list(self._stale), {}
        found = await store.refresh([name_of(digest) for digest in digests])
        for digest, there in zip(digests, found, strict=True):
            self.found(digest) if there else self.gone(digest)

    async def _over_budget(self, store: BlockStore) -> bool:
        if self._budget is None:
            return False
        if self._clock() - self._looked >= LOOK:
            self._used, self._looked = await store.used_bytes(), self._clock()
        return self._used > self._budget

    def _remember(self, digest: Digest) -> None:
        self._known[digest] = self._clock()
        self._known.move_to_end(digest)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)
