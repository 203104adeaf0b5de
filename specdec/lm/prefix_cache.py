"""Which KV block holds which full block of context, so that equal contexts are computed once."""

from __future__ import annotations

from hashlib import blake2b

from specdec.core.tree import Ids

Digest = bytes
DIGEST_BYTES = 16  # two contexts that meet in 128 bits do not happen


def root_digest(salt: bytes) -> Digest:
    """Where a chain begins. Sequences of different salts never find each other's blocks."""
    return blake2b(salt, digest_size=DIGEST_BYTES).digest()


def chain_digest(parent: Digest, token_ids: Ids) -> Digest:
    """Of a block by its tokens, uint32[BLOCK], and all before it: keys and values depend on the whole context."""
    return blake2b(parent + token_ids.astype("<u4").tobytes(), digest_size=DIGEST_BYTES).digest()


class PrefixCache:
    """Blocks by digest. A block that no sequence holds is idle: it stays until room is wanted, and then the least
    recently used goes first. `evictions` counts those that went."""

    def __init__(self) -> None:
        self._blocks: dict[Digest, int] = {}
        self._digests: dict[int, Digest] = {}
        self._idle: dict[int, None] = {}  # least recently used first
        self.evictions = 0

    def __contains__(self, block: int) -> bool:
        return block in self._digests

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def find(self, digest: Digest) -> int | None:
        return self._blocks.get(digest)

    def add(self, digest: Digest, block: int) -> None:
        assert digest not in self._blocks and block not in self._digests, "a block or a digest registered twice"
        self._blocks[digest] = block
        self._digests[block] = digest

    def forget(self, block: int) -> None:
        """Nobody finds it again. It is held by someone, or was never here."""
        assert block not in self._idle, "an idle block is evicted, not forgotten"
        if (digest := self._digests.pop(block, None)) is not None:
            del self._blocks[digest]

    def set_idle(self, block: int) -> None:
        """Its last holder has let go of it."""
        assert block in self._digests and block not in self._idle, "only a cached block can stay idle"
        self._idle[block] = None

    def set_held(self, block: int) -> None:
        """A sequence holds it (again)."""
        self._idle.pop(block, None)

    def evict(self) -> int:
        """The idle block that was used longest ago, in the cache no longer."""
        block = next(iter(self._idle))
        del self._idle[block]
        self.forget(block)
        self.evictions += 1
        return block
