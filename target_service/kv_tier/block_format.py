"""One block of keys and values as the store has it: what it is of, a checksum, the bytes. Nothing in it is executed or
unpickled, and nothing of it is believed before it was compared."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from specdec.core.errors import SpecdecError
from specdec.lm.exchange import BlockKey

MAGIC, VERSION = b"sdkv", 1
# magic, version, bytes of the identity, of parent and tokens together, and of the content; CRC-32 of all behind it
_HEADER = struct.Struct("<4sHHIII")


class BlockRefused(SpecdecError):
    """What the store holds under a block's name is not that block. reason: BLOCK_FORMAT, BLOCK_TRUNCATED,
    BLOCK_CHECKSUM, BLOCK_IDENTITY (another model, dtype, shape or layout), BLOCK_CONTEXT (another context)."""


def pack(identity: str, key: BlockKey, content: NDArray[np.uint8]) -> bytes:
    """identity: of whoever computed it, `BlockExchange.identity`; content: uint8[n]."""
    model, context = identity.encode(), key.parent + key.tokens
    body = np.ascontiguousarray(content).data
    checksum = zlib.crc32(body, zlib.crc32(context, zlib.crc32(model)))
    return b"".join((_HEADER.pack(MAGIC, VERSION, len(model), len(context), len(body), checksum), model, context, body))


def unpack(identity: str, key: BlockKey, data: bytes) -> NDArray[np.uint8]:
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
