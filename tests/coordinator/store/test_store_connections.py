"""Few connections for many sessions: callers wait, killed ones are replaced, cancelled ones are dropped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import Connection
from redis.exceptions import MaxConnectionsError

from coordinator.store import RedisStore, SessionStore
from specdec.core.errors import Unavailable
from tests.coordinator.store.kinds import (
    HANG_GUARD,
    Kind,
    RedisKind,
    append,
    commands_in_flight,
    ids,
    in_use,
    opened,
    record,
    same,
    stored,
)
from tests.coordinator.store.proxy import proxied
from tests.redis_server import RedisProcess


@pytest.mark.scenario("B106")
@pytest.mark.parametrize("kind", ["redis", "rediss", "sentinel", "cluster"], indirect=True)
async def test_many_sessions_share_two_connections_that_are_killed_fifty_times(kind: Kind) -> None:
    """100 sessions on a pool of 2 wait their turn; CLIENT KILL in mid-write costs nobody a commit or a connection."""
    assert isinstance(kind, RedisKind)
    names = [f"pool-{i}-{uuid4()}" for i in range(100)]
    kills = 0

    async def session(store: SessionStore, name: str) -> None:
        await store.create(record(name))
        for i in range(5):
            await append(store, name, 1, 3 + i, i)

    async def kill() -> None:
        nonlocal kills
        while kills < 50:
            for admin in kind.admin():
                kills += admin.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0)

    async with opened(kind, options="max_connections=2") as store:
        async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(session(store, name))
            group.create_task(kill())
        for name in names:
            assert same(await store.load(name), record(name, ids(1, 2, 3, 0, 1, 2, 3, 4)))
        assert in_use(store) == 0 and isinstance(store, RedisStore) and store.connections_in_use == 0


async def test_the_client_librarys_own_bounded_pool_refuses_instead_of_waiting(server: RedisProcess) -> None:
    """The fault of B106, which the store's own bound keeps away."""
    async with Redis(port=server.port, max_connections=2) as client:
        results = await asyncio.gather(*(client.get("x") for _ in range(100)), return_exceptions=True)
    assert any(isinstance(result, MaxConnectionsError) for result in results)


async def test_callers_that_find_no_free_connection_wait_no_longer_than_the_deadline(
    server: RedisProcess, server_kind: RedisKind
) -> None:
    deadline = 0.2
    async with opened(server_kind, deadline=deadline, options="max_connections=1") as store:
        with server.paused():
            async with asyncio.timeout(HANG_GUARD * deadline):
                results = await asyncio.gather(*(store.load("s") for _ in range(20)), return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)


async def cancelled_then_next(server: RedisProcess, kind: RedisKind) -> Any:
    """The reply to a load of session b, after a load of session a was cancelled on the only connection."""
    async with opened(kind, options="max_connections=1") as store:
        for name in "ab":
            await store.create(record(name, fingerprint=name))
            await store.load(name)  # so that the server knows the script
        with server.paused():
            first = asyncio.create_task(store.load("a"))
            await commands_in_flight(store)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert in_use(store) == 0
            second = asyncio.create_task(store.load("b"))
            await commands_in_flight(store)
        found = await second
        assert found is not None
        return found.fingerprint


async def test_a_cancelled_command_drops_its_connection(server: RedisProcess, server_kind: RedisKind) -> None:
    assert await cancelled_then_next(server, server_kind) == "b"


async def test_the_next_command_would_get_the_cancelled_ones_reply_on_a_kept_connection(
    server: RedisProcess, server_kind: RedisKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test above: the connection is not dropped."""
    drop = Connection.disconnect

    async def keep(self: Connection, nowait: bool = False, **options: Any) -> None:
        if not nowait:  # as a close does, not a cancel
            await drop(self, **options)

    monkeypatch.setattr(Connection, "disconnect", keep)
    assert await cancelled_then_next(server, server_kind) == "a"


@pytest.mark.parametrize("kind", ["redis", "rediss", "sentinel", "cluster"], indirect=True)
async def test_commands_cancelled_at_any_point_never_shift_the_replies_of_others(kind: Kind) -> None:
    rng = random.Random(7)
    names = [f"cancel-{i}-{uuid4()}" for i in range(4)]
    async with opened(kind, options="max_connections=2") as store:
        for name in names:
            await store.create(record(name, fingerprint=name))
        for _ in range(150):
            calls = {name: asyncio.create_task(store.load(name)) for name in rng.sample(names, 3)}
            for _ in range(rng.randrange(25)):
                await asyncio.sleep(0)
            rng.choice(list(calls.values())).cancel()
            for name, found in zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True):
                if not isinstance(found, asyncio.CancelledError):
                    assert not isinstance(found, BaseException) and found is not None, found
                    assert found.fingerprint == name
        assert in_use(store) == 0


async def test_calls_whose_reply_is_lost_are_repeated_and_count_once(server: RedisProcess) -> None:
    """The server did it, the client cannot know: create and take must not refuse their own doing."""
    async with proxied(server.port) as proxy:
        kind = RedisKind("redis", f"redis://127.0.0.1:{proxy.port}/0", lambda: [server.admin])
        async with opened(kind) as store:
            calls: list[tuple[str, Callable[[str, int], Awaitable[Any]]]] = [
                ("create", lambda name, _: store.create(record(name))),
                ("resume", lambda name, _: store.take(name, resume=True)),
                ("append", lambda name, epoch: append(store, name, epoch, 3, 4)),
                ("replace", lambda name, epoch: store.replace(record(name, ids(1, 2, 3, 4, 5), epoch=epoch))),
                ("heartbeat", lambda name, epoch: store.heartbeat(name, epoch)),
                ("release", lambda name, epoch: store.release(name, epoch)),
                ("take", lambda name, _: store.take(name, resume=False)),
                ("finish", lambda name, epoch: append(store, name, epoch, 5, 6, finish="stop")),
            ]
            for lost in (0, 2):  # the first round teaches the server the scripts
                epoch, name, epochs = 1, f"s{lost}", [1]
                for what, call in calls:
                    proxy.lose = lost
                    result = await call(name, epoch)
                    assert proxy.lose == 0, f"{what}: no reply was lost"
                    if result is not None:
                        epoch = result.epoch
                        epochs.append(epoch)
                found = await stored(store, name)
                assert (found.token_ids.tolist(), found.finish) == ([1, 2, 3, 4, 5, 6], "stop")
                assert found.epoch == epochs[-1] and epochs == sorted(set(epochs))


async def test_a_take_that_arrives_twice_long_apart_revives_no_lease(
    server_kind: RedisKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that was given up on may arrive after its repetition was served, and the owner has gone."""
    async with opened(server_kind) as store:
        await store.create(record("s", running=False))
        with monkeypatch.context() as patch:
            patch.setattr("coordinator.store.redis.token_hex", lambda size: "the same attempt")
            first = await store.take("s", resume=False)
            await store.release("s", first.epoch)
            assert (await store.take("s", resume=False)).epoch == first.epoch
        assert not (await stored(store, "s")).running
        assert (await store.take("s", resume=False)).epoch > first.epoch
