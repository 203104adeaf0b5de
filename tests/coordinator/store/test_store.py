"""What every session store means. One module, all kinds: memory, redis, rediss, Sentinel, cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import numpy as np
import pytest

from coordinator.store import SessionStore, StoreBehind
from specdec.core.errors import Aborted, FailedPrecondition, NotFound
from tests.coordinator.store.kinds import TTL, Kind, MemoryKind, RedisKind, append, ids, opened, record, same, stored


@pytest.fixture
async def store(kind: Kind) -> AsyncIterator[SessionStore]:
    async with opened(kind) as store:
        yield store


@pytest.fixture(autouse=True)
def every_key_has_a_ttl(kind: Kind) -> Iterator[None]:
    """After every test of this module, on every server."""
    yield
    assert [key for key, ttl in kind.key_ttls() if ttl < 0] == []


async def test_a_created_record_loads_exactly(store: SessionStore, name: str) -> None:
    written = record(name, held={"verifier-0": 3}, epoch=1)
    await store.create(written)
    loaded = await stored(store, name)
    assert same(written, loaded) and loaded.epoch == 1
    assert loaded.token_ids.dtype == np.uint32 and not loaded.token_ids.flags.writeable


async def test_largest_ids_and_empty_contexts_survive(store: SessionStore, name: str) -> None:
    await store.create(record(name, ids(), turn_start=0))
    await append(store, name, 1, 0, 0, 2**32 - 2, 10, 13)
    assert (await stored(store, name)).token_ids.tolist() == [0, 2**32 - 2, 10, 13]


async def test_a_store_that_serves_answers_a_ping(store: SessionStore) -> None:
    await store.ping()
    await store.ping()


async def test_a_session_is_created_once(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    with pytest.raises(FailedPrecondition, match="exists already") as caught:
        await store.create(record(name, ids(9)))
    assert caught.value.reason == "SESSION_EXISTS"
    assert same(await store.load(name), record(name))


async def test_what_the_caller_does_to_its_arrays_does_not_change_the_store(store: SessionStore, name: str) -> None:
    mine, held = ids(1, 2, 3), {"v": 3}
    await store.create(record(name, mine, held=held))
    mine[0], held["v"] = 99, 99
    (await stored(store, name)).held["v"] = 98
    assert same(await store.load(name), record(name, held={"v": 3}))


async def test_an_absent_session_loads_as_none_and_cannot_be_taken(store: SessionStore, name: str) -> None:
    assert await store.load(name) is None
    for resume in (False, True):
        with pytest.raises(NotFound):
            await store.take(name, resume=resume)


@pytest.mark.parametrize("odd", ["}", "{}", "{a}b", "a b\n*", "ü/%7D"])
async def test_any_session_id_is_one_session(store: SessionStore, name: str, odd: str) -> None:
    name = odd + name + odd
    await store.create(record(name))
    await append(store, name, 1, 3, 4)
    assert (await stored(store, name)).session_id == name


async def test_appends_grow_the_context_and_carry_what_replicas_hold(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    await append(store, name, 1, 3, 4, 5, held={"v": 3})
    await append(store, name, 1, 5, 6, held={"v": 5, "w": 2})
    expected = record(name, ids(1, 2, 3, 4, 5, 6), held={"v": 5, "w": 2})
    assert same(await store.load(name), expected)


async def test_a_finish_ends_the_turn_and_the_lease(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    await append(store, name, 1, 3, 4, finish="stop")
    ended = await stored(store, name)
    assert (ended.finish, ended.running, ended.output_ids.tolist()) == ("stop", False, [4])
    taken = await store.take(name, resume=False)
    assert taken.running and taken.epoch > 1 and taken.finish == "stop"


async def test_an_append_repeated_after_an_ambiguous_failure_counts_once(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    for _ in range(3):
        await append(store, name, 1, 3, 4, 5)
    for _ in range(3):
        await append(store, name, 1, 5, 6, finish="length")
    for _ in range(3):
        await append(store, name, 1, 6, finish="length")
    final = await stored(store, name)
    assert final.token_ids.tolist() == [1, 2, 3, 4, 5, 6] and final.finish == "length" and not final.running


async def test_other_tokens_than_those_committed_are_refused(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    await append(store, name, 1, 3, 4, 5)
    for expected, new in ((3, (4, 6)), (3, (4,)), (3, (4, 5, 6)), (4, (5, 6)), (3, ()), (2, (3,))):
        with pytest.raises(Aborted) as caught:
            await append(store, name, 1, expected, *new)
        assert caught.value.reason == "STORE_CONFLICT"
    assert (await stored(store, name)).token_ids.tolist() == [1, 2, 3, 4, 5]


async def test_a_late_duplicate_changes_nothing_once_the_owner_has_ended(store: SessionStore, name: str) -> None:
    """Attempts that the client gave up on may arrive when a paused server wakes."""
    await store.create(record(name))
    await append(store, name, 1, 3, 4, finish="stop")
    for late in (append(store, name, 1, 4, 5), append(store, name, 1, 4)):
        with pytest.raises(Aborted):
            await late
    with pytest.raises(Aborted):
        await store.replace(record(name, ids(1, 2, 3, 4)))
    ended = await stored(store, name)
    assert (ended.token_ids.tolist(), ended.finish, ended.running) == ([1, 2, 3, 4], "stop", False)


async def test_a_store_that_holds_less_says_how_much(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    with pytest.raises(StoreBehind) as caught:
        await append(store, name, 1, 5, 6)
    assert caught.value.held == 3
    await store.replace(record(name, ids(1, 2, 3, 4, 5)))
    await append(store, name, 1, 5, 6)
    assert (await stored(store, name)).token_ids.tolist() == [1, 2, 3, 4, 5, 6]


async def test_a_superseded_owner_can_change_nothing(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    newer = await store.take(name, resume=True)
    for late in (
        append(store, name, 1, 3, 4),
        append(store, name, 1, 3, 4, finish="stop"),
        store.heartbeat(name, 1),
        store.replace(record(name, ids(7, 7, 7, 7))),
    ):
        with pytest.raises(Aborted) as caught:
            await late
        assert caught.value.reason == "SUPERSEDED"
    await store.release(name, 1)
    assert same(await store.load(name), record(name))
    await append(store, name, newer.epoch, 3, 5)
    assert (await stored(store, name)).token_ids.tolist() == [1, 2, 3, 5]


async def test_a_running_session_refuses_a_new_turn_but_not_a_resume(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    with pytest.raises(FailedPrecondition) as caught:
        await store.take(name, resume=False)
    assert caught.value.reason == "SESSION_BUSY"
    assert (await store.take(name, resume=True)).epoch > 1


async def test_a_dead_owner_holds_a_session_no_longer_than_its_lease(
    kind: Kind, store: SessionStore, name: str
) -> None:
    await store.create(record(name))
    kind.lapse(name)
    second = await store.take(name, resume=False)
    with pytest.raises(FailedPrecondition):
        await store.take(name, resume=False)
    kind.lapse(name)
    await store.heartbeat(name, second.epoch)
    with pytest.raises(FailedPrecondition):
        await store.take(name, resume=False)
    kind.lapse(name)
    await append(store, name, second.epoch, 3, 4)
    with pytest.raises(FailedPrecondition):
        await store.take(name, resume=False)


@pytest.mark.scenario("B84")
async def test_a_turn_that_its_client_left_frees_the_session_at_once(store: SessionStore, name: str) -> None:
    """Turn 1 done, turn 2 cancelled after a chunk, turn 3 at once: it starts from the committed tokens."""
    await store.create(record(name))
    await append(store, name, 1, 3, 4, finish="stop")
    second = await store.take(name, resume=False)
    await store.replace(replace(second, token_ids=ids(1, 2, 3, 4, 10), turn_start=5, finish=None))
    await append(store, name, second.epoch, 5, 11)
    with pytest.raises(FailedPrecondition):  # the injector: without the release it is busy
        await store.take(name, resume=False)
    await store.release(name, second.epoch)
    third = await store.take(name, resume=False)
    assert third.token_ids.tolist() == [1, 2, 3, 4, 10, 11] and third.turn_start == 5
    with pytest.raises(Aborted):
        await append(store, name, second.epoch, 6, 12)


async def test_a_new_turn_may_cut_the_context_but_no_commit_of_its_own(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    await append(store, name, 1, 3, 4, 5, 6, finish="length")
    turn = replace(await store.take(name, resume=False), finish=None)
    cut = replace(turn, token_ids=ids(1, 2, 3, 4, 20), turn_start=5)
    await store.replace(cut)
    await append(store, name, turn.epoch, 5, 21)
    with pytest.raises(Aborted) as caught:  # the same replace again, delayed on the way
        await store.replace(cut)
    assert caught.value.reason == "STORE_CONFLICT"
    assert (await stored(store, name)).token_ids.tolist() == [1, 2, 3, 4, 20, 21]


async def test_release_is_harmless_where_nothing_is_owned(store: SessionStore, name: str) -> None:
    await store.release(name, 1)
    await store.create(record(name))
    await store.release(name, 1)
    await store.release(name, 1)
    assert not (await stored(store, name)).running


async def test_a_heartbeat_after_the_end_takes_no_lease(store: SessionStore, name: str) -> None:
    await store.create(record(name))
    await store.release(name, 1)
    await store.heartbeat(name, 1)
    assert (await store.take(name, resume=False)).running


@pytest.mark.scenario("B109")
async def test_a_record_that_expired_under_its_owner_is_written_back_whole(
    kind: Kind, store: SessionStore, name: str
) -> None:
    """A commit to an expired record is refused; the owner writes everything, with a TTL (checked after each test)."""
    await store.create(record(name))
    await append(store, name, 1, 3, 4)
    kind.expire(name)
    assert await store.load(name) is None
    with pytest.raises(StoreBehind) as caught:
        await append(store, name, 1, 4, 5)
    assert caught.value.held == 0
    with pytest.raises(StoreBehind):
        await store.heartbeat(name, 1)
    whole = record(name, ids(1, 2, 3, 4, 5))
    await store.replace(whole)
    assert same(await store.load(name), whole)
    with pytest.raises(FailedPrecondition):
        await store.take(name, resume=False)
    await append(store, name, 1, 5, 6)


@pytest.mark.parametrize("part", ["meta", "tokens"])
async def test_half_a_record_is_no_record(kind: Kind, store: SessionStore, name: str, part: str) -> None:
    """An eviction takes one key, never both."""
    if not isinstance(kind, RedisKind):
        return  # one dict entry has no halves
    await store.create(record(name))
    kind.lose(name, part)
    assert await store.load(name) is None
    with pytest.raises(NotFound):
        await store.take(name, resume=True)
    with pytest.raises(StoreBehind) as caught:
        await append(store, name, 1, 3, 4)
    assert caught.value.held == 0
    await store.create(record(name, ids(5)))
    assert (await stored(store, name)).token_ids.tolist() == [5]


async def test_every_use_refreshes_the_ttl(kind: Kind, store: SessionStore, name: str) -> None:
    await store.create(record(name))

    async def fresh() -> bool:
        if isinstance(kind, MemoryKind):
            kind.now += 0.9 * TTL
            return await store.load(name) is not None
        ttls = {key.rpartition(":")[2]: ttl for key, ttl in kind.key_ttls() if name in key}
        assert isinstance(kind, RedisKind)
        for client in kind.admin():  # age them before the next use
            for key in client.scan_iter(f"specdec:*{name}*"):
                client.pexpire(key, 10_000)
        return min(ttls["meta"], ttls["tokens"]) > 900 * TTL and ttls.get("owner", 15_000) > 11_000

    assert await fresh()
    await store.heartbeat(name, 1)
    assert await fresh()
    await append(store, name, 1, 3, 4)
    assert await fresh()
    await append(store, name, 1, 3, 4)
    assert await fresh()
    epoch = (await store.take(name, resume=True)).epoch
    assert await fresh()
    await store.replace(record(name, ids(1, 2, 3, 4, 5), epoch=epoch))
    assert await fresh()
    await store.release(name, epoch)
    assert await fresh()
