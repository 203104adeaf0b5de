from __future__ import annotations

import pytest

from coordinator.store import MemoryStore
from specdec.core.errors import ResourceExhausted
from tests.coordinator.store.kinds import record


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_full_store_refuses_new_sessions_and_keeps_the_old() -> None:
    store = MemoryStore(ttl=10, lease=5, max_sessions=2, clock=Clock())
    await store.create(record("a"))
    await store.create(record("b"))
    for call in (store.create(record("c")), store.replace(record("c"))):
        with pytest.raises(ResourceExhausted) as caught:
            await call
        assert caught.value.reason == "STORE_FULL"
    await store.replace(record("a"))
    assert await store.load("b") is not None


async def test_expired_sessions_make_room_whichever_was_used_last() -> None:
    clock = Clock()
    store = MemoryStore(ttl=10, lease=5, max_sessions=2, clock=clock)
    await store.create(record("a"))
    clock.now = 4
    await store.create(record("b"))
    clock.now = 6
    await store.heartbeat("a", 1)
    clock.now = 14
    await store.create(record("c"))
    assert [await store.load(name) is not None for name in "abc"] == [True, False, True]
    clock.now = 16
    assert await store.load("a") is None


async def test_expired_sessions_are_freed_by_any_later_use() -> None:
    clock = Clock()
    store = MemoryStore(ttl=10, lease=5, clock=clock)
    for i in range(100):
        await store.create(record(f"s{i}"))
    clock.now = 11
    await store.load("other")
    assert not store._entries
