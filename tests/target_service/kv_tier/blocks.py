"""A block store in a dict, scripted: it can lose, damage, refuse and dawdle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specdec.lm.exchange import BlockKey, block_key
from specdec.lm.network import BLOCK
from target_service.kv_tier.block_format import BlockFrame

IDENTITY = "a model"
SIZE = 256


@dataclass
class DictBlocks:
    """broken: every call raises. gate: calls wait until it is set. trips: the names of each `get`."""

    values: dict[str, bytes] = field(default_factory=dict)
    broken: bool = False
    used: int = 0
    gate: asyncio.Event | None = None
    trips: list[list[str]] = field(default_factory=list)
    puts: list[str] = field(default_factory=list)
    refreshed: list[str] = field(default_factory=list)

    async def _enter(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.broken:
            raise ConnectionError("scripted")

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        self.trips.append(list(names))
        await self._enter()
        return [self.values.get(name) for name in names]

    async def put(self, name: str, value: memoryview) -> bool:
        await self._enter()
        self.puts.append(name)
        if name in self.values:
            return False
        self.values[name] = bytes(value)
        return True

    async def refresh(self, names: Sequence[str]) -> list[bool]:
        await self._enter()
        self.refreshed += names
        return [name in self.values for name in names]

    async def delete(self, name: str) -> None:
        await self._enter()
        self.values.pop(name, None)

    async def used_bytes(self) -> int:
        await self._enter()
        return self.used

    async def close(self) -> None:
        return


def keys(count: int, seed: int = 0) -> list[BlockKey]:
    """A chain."""
    parent, chain = bytes(16), list[BlockKey]()
    for tokens in np.random.default_rng(seed).integers(0, 97, (count, BLOCK)).astype(np.uint32):
        chain.append(block_key(parent, tokens))
        parent = chain[-1].digest
    return chain


def sealed(identity: str, key: BlockKey, content: np.ndarray) -> bytes:
    """As a verifier stores it."""
    frame = BlockFrame(identity, content.nbytes)
    buffer = bytearray(frame.size)
    frame.content(buffer)[:] = content
    frame.seal(buffer, key)
    return bytes(buffer)


def content(i: int) -> np.ndarray:
    return np.full(SIZE, i, dtype=np.uint8)
