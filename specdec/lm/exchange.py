"""Full blocks of context as other processes may have them: by digest, out of a pool and into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.core.tree import Ids
from specdec.lm.blocks import Blocks
from specdec.lm.network import BLOCK
from specdec.lm.prefix_cache import Digest, chain_digest, root_digest


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Of a full block of context. parent: digest of the block before it, or where its chain begins; tokens: its own,
    little-endian uint32[BLOCK]."""

    digest: Digest
    parent: Digest
    tokens: bytes


class BlockExchange:
    """Driven by the thread of the pool. identity: of what computes these keys and values and how they lie. It begins
    every chain, so that processes know a block by one digest exactly where they may exchange it."""

    def __init__(self, blocks: Blocks, model: str) -> None:
        self.identity = f"{model}, {blocks.storage.layout}, blocks of {BLOCK}"
        self._blocks = blocks

    @property
    def block_bytes(self) -> int:
        return self._blocks.storage.block_bytes

    def root(self, salt: bytes = b"") -> Digest:
        """Where the chains of sequences of this salt begin."""
        return root_digest(self.identity.encode() + b"\0" + salt)

    def chain(self, token_ids: Ids, salt: bytes = b"") -> list[BlockKey]:
        """Of the full blocks of a context."""
        keys, parent = list[BlockKey](), self.root(salt)
        for end in range(BLOCK, len(token_ids) + 1, BLOCK):
            key = block_key(parent, token_ids[end - BLOCK : end])
            keys.append(key)
            parent = key.digest
        return keys

    def held(self, digests: Sequence[Digest]) -> int:
        """How many of them are here, from the first on without a gap."""
        return next((i for i, digest in enumerate(digests) if self._blocks.cache.find(digest) is None), len(digests))

    def read(self, digest: Digest, out: NDArray[np.uint8]) -> bool:
        """Copies a block to `out`, uint8[block_bytes]. False: it is not here."""
        block = self._blocks.cache.find(digest)
        if block is not None:
            self._blocks.storage.read_block(block, out)
        return block is not None

    def install(self, digests: Sequence[Digest], contents: Sequence[NDArray[np.uint8]]) -> int:
        """Take in what another process computed: `contents` are the blocks of the last of `digests`, the chain of a
        context. Nobody holds them yet. Returns how many of them are new here: none where the blocks before them are
        gone, fewer where there is no more room."""
        first = len(digests) - len(contents)
        here = self.held(digests)
        if here < first:
            return 0
        # Held meanwhile: no block of the chain is to make room for the rest of it.
        holding = [block for digest in digests[:here] if (block := self._blocks.find(digest)) is not None]
        after = holding[-1] if holding else None
        installed = self._blocks.install(digests[here:], contents[here - first :], after)
        self._blocks.drop(holding[::-1])
        return installed


def block_key(parent: Digest, token_ids: Ids) -> BlockKey:
    """token_ids: uint32[BLOCK]."""
    return BlockKey(chain_digest(parent, token_ids), parent, token_ids.astype("<u4").tobytes())
