"""What the Redis stores do when Redis pauses, dies, fails over, runs out of room, or loses connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pytest
from redis.exceptions import ReadOnlyError

from coordinator.store import SessionStore, StoreBehind
from specdec.core.errors import Aborted, ResourceExhausted, Unavailable
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
)
from tests.coordinator.store.proxy import proxied
from tests.redis_server import ClusterGroup, RedisProcess, SentinelGroup, until

EVERY_CALL: list[Callable[[SessionStore, str], Awaitable[Any]]] = [
    lambda store, name: store.ping(),
    lambda store, name: store.load(name),
    lambda store, name: store.create(record(name)),
    lambda store, name: store.take(name, resume=True),
    lambda store, name: append(store, name, 1, 3, 4),
    lambda store, name: store.replace(record(name)),
    lambda store, name: store.heartbeat(name, 1),
    lambda store, name: store.release(name, 1),
]


@pytest.mark.scenario("B111")
@pytest.mark.parametrize("connected", [True, False], ids=["mid-generation", "at start"])
async def test_a_paused_server_makes_every_call_unavailable_within_its_deadline(
    server: RedisProcess, server_kind: RedisKind, connected: bool
) -> None:
    """SIGSTOP at start, load and commit: UNAVAILABLE in bounded time, and served again after SIGCONT."""
    deadline = 0.2
    async with opened(server_kind, deadline=deadline) as store:
        if connected:
            await store.create(record("s"))
        with server.paused():
            async with asyncio.timeout(HANG_GUARD * deadline):
                calls = [call(store, f"s{i}") for i, call in enumerate(EVERY_CALL)]
                results = await asyncio.gather(*calls, return_exceptions=True)
            for result in results:
                assert isinstance(result, Unavailable), result
                assert result.reason == "STORE_UNAVAILABLE" and result.retry_after > 0
        assert in_use(store) == 0
        await store.ping()
        await store.create(record("after"))
        assert same(await store.load("after"), record("after"))


async def test_a_pause_shorter_than_the_deadline_is_only_a_wait(server: RedisProcess, server_kind: RedisKind) -> None:
    async with opened(server_kind) as store:
        await store.create(record("s"))
        server.pause()
        call = asyncio.create_task(append(store, "s", 1, 3, 4))
        await commands_in_flight(store)
        server.resume()
        await call


async def test_a_paused_shard_hurts_only_its_own_sessions(cluster_group: ClusterGroup) -> None:
    deadline = 0.3
    kind = RedisKind("cluster", cluster_group.url, lambda: [n.admin for n in cluster_group.nodes])
    names = [f"shard-{i}-{uuid4()}" for i in range(24)]
    async with opened(kind, deadline=deadline) as store:
        for name in names:
            await store.create(record(name))
        with cluster_group.nodes[1].paused():
            async with asyncio.timeout(HANG_GUARD * deadline):
                results = await asyncio.gather(*(store.load(n) for n in names), return_exceptions=True)
        lost = [isinstance(result, Unavailable) for result in results]
        keys = {str(key) for key in cluster_group.nodes[1].admin.scan_iter("specdec:*:meta")}
        for name, hurt in zip(names, lost, strict=True):
            assert not hurt or f"specdec:{{{name}}}:meta" in keys, "a shard that serves was given up"
        assert any(lost) and not all(lost)
        for name in names:
            assert same(await store.load(name), record(name))


async def test_a_server_killed_with_a_commit_in_flight_and_restarted_empty_gets_the_record_back(
    server: RedisProcess, server_kind: RedisKind
) -> None:
    async with opened(server_kind) as store:
        await store.create(record("s"))
        await append(store, "s", 1, 3, 4)
        server.pause()
        call = asyncio.create_task(append(store, "s", 1, 4, 5))
        await commands_in_flight(store)
        server.kill()
        server.start()
        with pytest.raises(StoreBehind) as caught:
            await call
        assert caught.value.held == 0
        await store.replace(record("s", ids(1, 2, 3, 4, 5)))
        await append(store, "s", 1, 5, 6)
        assert same(await store.load("s"), record("s", ids(1, 2, 3, 4, 5, 6)))
    assert [key for key, ttl in server_kind.key_ttls() if ttl < 0] == []


async def test_a_failover_that_loses_acknowledged_commits_is_noticed_and_mended() -> None:
    """The owner learns how much is left and writes it back; two owners whose takes the failover kept apart never
    share an epoch; commits that run all the while lose nothing."""
    with SentinelGroup() as group:
        kind = RedisKind("sentinel", group.url, lambda: [group.replica.admin])
        async with opened(kind, deadline=20.0) as store:
            for name in ("lost commits", "lost take", "busy"):
                await store.create(record(name))
            until(lambda: group.replica.admin.dbsize() == group.master.admin.dbsize(), "the replication")
            group.lose_replica_link()
            await append(store, "lost commits", 1, 3, 4, 5)
            early = await store.take("lost take", resume=True)
            committed = [1, 2, 3]
            committing = asyncio.create_task(commit_without_end(store, "busy", committed))
            await more(committed)
            await asyncio.to_thread(group.fail_over)

            with pytest.raises(StoreBehind) as caught:
                await append(store, "lost commits", 1, 5, 6)
            assert caught.value.held == 3
            whole = record("lost commits", ids(1, 2, 3, 4, 5, 6))
            await store.replace(whole)
            await append(store, "lost commits", 1, 6, 7)
            assert same(await store.load("lost commits"), replace(whole, token_ids=ids(1, 2, 3, 4, 5, 6, 7)))

            with pytest.raises(StoreBehind):
                await store.heartbeat("lost take", early.epoch)
            late = await store.take("lost take", resume=True)
            assert late.epoch > early.epoch
            with pytest.raises(Aborted):
                await append(store, "lost take", early.epoch, 3, 9)

            await more(committed)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            found = await store.load("busy")
            assert found is not None
            assert found.token_ids.tolist()[: len(committed)] == committed
        assert [key for key, ttl in kind.key_ttls() if ttl < 0] == []


async def more(committed: list[int]) -> None:
    enough = len(committed) + 20
    while len(committed) < enough:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def commit_without_end(store: SessionStore, name: str, committed: list[int]) -> None:
    """An owner that writes its record back whenever the store lost some of it."""
    while True:
        new = len(committed)
        try:
            await append(store, name, 1, len(committed), new)
        except StoreBehind:
            await store.replace(record(name, np.array([*committed, new], dtype=np.uint32)))
        committed.append(new)


@pytest.mark.parametrize("kind", ["redis", "sentinel", "cluster"], indirect=True)
async def test_scripts_that_the_server_forgot_are_sent_again(kind: Kind) -> None:
    assert isinstance(kind, RedisKind)
    name = f"scripts-{uuid4()}"
    async with opened(kind) as store:
        await store.create(record(name))
        for admin in kind.admin():
            admin.script_flush()
        await append(store, name, 1, 3, 4)


async def test_a_full_server_refuses_and_keeps_what_it_has(server: RedisProcess, server_kind: RedisKind) -> None:
    async with opened(server_kind) as store:
        await store.create(record("s"))
        server.admin.config_set("maxmemory", "1")
        for call in (append(store, "s", 1, 3, 4), store.create(record("t")), store.take("s", resume=True)):
            with pytest.raises(ResourceExhausted) as caught:
                await call
            assert caught.value.reason == "STORE_FULL"
        assert same(await store.load("s"), record("s")) and await store.load("t") is None
        server.admin.config_set("maxmemory", "0")
        await append(store, "s", 1, 3, 4)


async def test_a_demoted_master_is_tried_again_until_it_is_master(server: RedisProcess, server_kind: RedisKind) -> None:
    async with opened(server_kind, deadline=0.2) as hasty, opened(server_kind) as patient:
        await hasty.create(record("s"))
        server.admin.replicaof("127.0.0.1", "1")
        with pytest.raises(Unavailable) as caught:
            await append(hasty, "s", 1, 3, 4)
        assert isinstance(caught.value.__cause__, ReadOnlyError)
        call = asyncio.create_task(append(patient, "s", 1, 3, 4))
        await commands_in_flight(patient)
        server.admin.replicaof("no", "one")
        await call


async def test_a_name_that_moves_to_the_new_master_is_followed(server: RedisProcess) -> None:
    """Connections to the demoted master stay open and healthy: they have to be given up."""
    with RedisProcess("--replicaof", "127.0.0.1", str(server.port)) as replica:
        async with proxied(server.port) as proxy:
            kind = RedisKind("redis", f"redis://127.0.0.1:{proxy.port}/0", lambda: [replica.admin])
            async with opened(kind, deadline=3.0, options="max_connections=1") as store:
                await store.create(record("s"))
                until(lambda: replica.admin.exists("specdec:{s}:meta"), "the replication")
                proxy.behind = replica.port
                replica.admin.replicaof("no", "one")
                server.admin.replicaof("127.0.0.1", str(replica.port))
                await append(store, "s", 1, 3, 4)


async def test_a_commit_can_wait_for_a_replica(sentinel_group: SentinelGroup) -> None:
    kind = RedisKind("sentinel", sentinel_group.url, lambda: [sentinel_group.master.admin])
    name, options = f"wait-{uuid4()}", "wait_replicas=1"
    async with opened(kind, options=options) as store, opened(kind, deadline=0.8, options=options) as hasty:
        await store.create(record(name))
        with sentinel_group.replica.paused():
            with pytest.raises(Unavailable) as caught:
                await append(hasty, name, 1, 3, 4)
            assert "0 of 1 replicas" in str(caught.value.__cause__)
            found = await hasty.load(name)
            assert found is not None and found.token_ids.tolist() == [1, 2, 3, 4], "the master has it"
        await append(store, name, 1, 3, 4)
        sentinel_group.master.admin.script_flush()
        await append(store, name, 1, 4, 5)
        assert sentinel_group.replica.admin.strlen(f"specdec:{{{name}}}:tokens") == 4 * 5


async def test_a_server_that_may_evict_sessions_is_warned_of_once(
    server: RedisProcess, server_kind: RedisKind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "coordinator.store")
    async with opened(server_kind) as store:
        await store.ping()
    assert not caplog.records
    server.admin.config_set("maxmemory", "100mb")
    server.admin.config_set("maxmemory-policy", "allkeys-lru")
    async with opened(server_kind) as store:
        await store.ping()
        await store.ping()
    assert [r.getMessage() for r in caplog.records] == [
        "the session store may evict sessions (maxmemory-policy allkeys-lru): set it to noeviction"
    ]


async def test_passwords_work_and_appear_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    secret = "p@ss:w/rd %"
    with RedisProcess("--requirepass", secret) as server:
        for password, right in ((secret, True), ("wr@ng", False)):
            url = f"redis://:{quote(password, safe='')}@127.0.0.1:{server.port}/0"
            async with opened(RedisKind("redis", url, list), deadline=0.3) as store:
                if right:
                    await store.create(record("s"))
                    continue
                with pytest.raises(Unavailable) as caught:
                    await store.load("s")
                assert password not in str(caught.value) and secret not in str(caught.value)
