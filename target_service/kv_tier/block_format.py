"""One block of keys and values as the store has it: what it is of, a checksum, the bytes. Nothing in it is executed or
unpickled, and nothing of it is believed before it was compared."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from specdec.core.errors import SpecdecError
from specdec.lm.exchange import BlockKey
from specdec.lm.network import BLOCK
from specdec.lm.prefix_cache import DIGEST_BYTES

MAGIC, VERSION = b"sdkv", 1
CONTEXT_BYTES = DIGEST_BYTES + 4 * BLOCK
# magic, version, bytes of the identity, of parent and tokens together, and of the content; CRC-32 of all behind it
_HEADER = struct.Struct("<4sHHIII")


class BlockRefused(SpecdecError):
    """What the store holds under a block's name is not that block. reason: BLOCK_FORMAT, BLOCK_TRUNCATED,
    BLOCK_CHECKSUM, BLOCK_IDENTITY (another model, dtype, shape or layout), BLOCK_CONTEXT (another context)."""


class BlockFrame:
    """A buffer that a block is copied into once and sent from. identity: of whoever computes it,
    `BlockExchange.identity`; content_bytes: of a block. size: of the whole, in bytes."""

    def __init__(self, identity: str, content_bytes: int) -> None:
        self._model = identity.encode()
        self._first = _HEADER.size + len(self._model) + CONTEXT_BYTES
        self.size = self._first + content_bytes

    def content(self, buffer: bytearray) -> NDArray[np.uint8]:
        """Where the block goes: a view of `buffer`, which has `size` bytes."""
        return np.frombuffer(buffer, dtype=np.uint8)[self._first :]

    def seal(self, buffer: bytearray, key: BlockKey) -> None:
        """Says what the content is of, once it is there."""
        context = key.parent + key.tokens
        buffer[_HEADER.size : self._first] = self._model + context
        checksum = zlib.crc32(memoryview(buffer)[_HEADER.size :])
        sizes = len(self._model), len(context), self.size - self._first
        _HEADER.pack_into(buffer, 0, MAGIC, VERSION, *sizes, checksum)


def unpack(identity: str, key: BlockKey, data: bytes | bytearray) -> NDArray[np.uint8]:
    """The content, a view of `data`. The context is compared token by token: equal digests alone are not believed.

    Raises BlockRefused."""
    if len(data) < _HEADER.size:
        raise BlockRefused(f"a block of {len(data)} bytes", reason="BLOCK_TRUNCATED")
    magic, version, *sizes, checksum = _HEADER.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise BlockRefused(f"a block of format {magic!r} {version}, not {MAGIC!r} {VERSION}", reason="BLOCK_FORMAT")
    whole = _HEADER.size + sum(sizes)
    if len(data) != whole:
        raise BlockRefused(f"a block of {len(data)} bytes instead of {whole}", reason="BLOCK_TRUNCATED")
    view = memoryview(data)
    if zlib.crc32(view[_HEADER.size :]) != checksum:
        raise BlockRefused("a block whose checksum is wrong", reason="BLOCK_CHECKSUM")
    first, second = _HEADER.size + sizes[0], _HEADER.size + sizes[0] + sizes[1]
    if view[_HEADER.size : first] != identity.encode():
        theirs = bytes(view[_HEADER.size : first]).decode(errors="replace")
        raise BlockRefused(f"a block of {theirs!r}, not of {identity!r}", reason="BLOCK_IDENTITY")
    if view[first:second] != key.parent + key.tokens:
        raise BlockRefused("a block of another context under the same digest", reason="BLOCK_CONTEXT")
    return np.frombuffer(view[second:], dtype=np.uint8)
