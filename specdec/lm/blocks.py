"""The blocks of a KV storage and who holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec.core.errors import ResourceExhausted
from specdec.lm.network import KVStorage
from specdec.lm.prefix_cache import Digest, PrefixCache


class Blocks:
    """Each block is held by sequences, or kept by the prefix cache alone, or free."""

    def __init__(self, storage: KVStorage, count: int) -> None:
        assert count <= storage.num_blocks, f"{count} blocks wanted of a storage of {storage.num_blocks}"
        self.storage = storage
        self.cache = PrefixCache()
        self._holders = [0] * count
        self._free = np.ones(count, dtype=np.bool_)
        self._num_free = count

    @property
    def num_free(self) -> int:
        """Blocks that can still be taken; what only the cache keeps is given up for them."""
        return self._num_free + self.cache.num_idle

    def take(self, count: int, after: int | None) -> list[int]:
        """`count` zeroed blocks, behind block `after` where that is possible.

        Raises ResourceExhausted, with nothing changed, when there are not so many."""
        taken = self._take(count, after)
        if taken:
            self.storage.clear(taken)
        return taken

    def _take(self, count: int, after: int | None) -> list[int]:
        if count > self.num_free:
            message = f"{count} blocks of KV wanted, {self.num_free} of {len(self._holders)} free"
            raise ResourceExhausted(message, reason="KV_EXHAUSTED")
        while self._num_free < count:
            self._set_free(self.cache.evict())
        taken: list[int] = []
        while len(taken) < count:
            block = self._next(taken[-1] if taken else after, count - len(taken))
            self._free[block] = False
            self._num_free -= 1
            self._holders[block] = 1
            taken.append(block)
        return taken

    def find(self, digest: Digest) -> int | None:
        """The block of this digest, now held by the caller too."""
        if (block := self.cache.find(digest)) is not None:
            self.cache.set_held(block)
            self._holders[block] += 1
        return block

    def publish(self, block: int, digest: Digest) -> int:
        """Let others find this full block. Returns the block to hold instead: another, where the same was known."""
        if (known := self.find(digest)) is None:
            self.cache.add(digest, block)
            return block
        assert known != block, "a block that is full becomes full again"
        self.drop([block])
        return known

    def install(self, digests: Sequence[Digest], contents: Sequence[NDArray[np.uint8]], after: int | None) -> int:
        """Let others find contents that were computed elsewhere, as many as there is room for; nobody holds them yet.
        Returns how many. after: the block of those before them."""
        count = min(len(contents), self.num_free)
        taken = self._take(count, after)
        for block, content in zip(taken, contents, strict=False):
            self.storage.write_block(block, content)
        known = [self.publish(block, digest) for block, digest in zip(taken, digests, strict=False)]
        self.drop(known[::-1])
        return count

    def is_shared(self, block: int) -> bool:
        return self._holders[block] > 1

    def forget(self, blocks: Iterable[int]) -> None:
        """Let nobody find these blocks, which the caller holds, any more."""
        for block in blocks:
            self.cache.forget(block)

    def drop(self, blocks: Iterable[int]) -> None:
        """Hold these blocks no longer. Of those that the cache keeps, the last given are the last to be evicted."""
        for block in blocks:
            assert self._holders[block] > 0, "a block dropped that nobody holds"
            self._holders[block] -= 1
            if not self._holders[block]:
                if block in self.cache:
                    self.cache.set_idle(block)
                else:
                    self._set_free(block)

    def _set_free(self, block: int) -> None:
        self._free[block] = True
        self._num_free += 1

    def _next(self, after: int | None, count: int) -> int:
        """The free block behind `after`, else the first of `count` in the longest free run: blocks in a row are read
        as one. The start of a run is left to whoever may grow into it from before, as is its end to the newcomer."""
        if after is not None and after + 1 < len(self._free) and self._free[after + 1]:
            return after + 1
        edges = np.flatnonzero(np.diff(self._free, prepend=False, append=False))
        firsts, lengths = edges[::2], edges[1::2] - edges[::2]
        longest = int(lengths.argmax())
        first, spare = int(firsts[longest]), max(0, int(lengths[longest]) - count)
        return first + spare // 2 if first else first
