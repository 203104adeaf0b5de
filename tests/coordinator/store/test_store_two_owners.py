"""Two owners of one session, at once and in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import groupby, permutations
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from coordinator.session import SessionRecord
from coordinator.store import SessionStore, StoreBehind
from specdec.core.errors import Aborted, FailedPrecondition, SpecdecError
from tests.coordinator.store.kinds import Kind, MemoryKind, RedisKind, append, ids, opened, record, same, stored


@pytest.mark.scenario("B82")
async def test_of_two_turns_started_at_once_one_runs_and_one_is_refused(kind: Kind, name: str) -> None:
    """200 repeats; the stored history is one of the two serial orders."""
    async with opened(kind) as first, opened(kind) as second:
        await first.create(record(name, running=False))

        async def turn(store: SessionStore, token: int) -> int | None:
            try:
                mine = await store.take(name, resume=False)
            except FailedPrecondition:
                return None
            length = len(mine.token_ids)
            for i in range(2):
                await asyncio.sleep(0)  # a cycle
                finish = "stop" if i else None
                await append(store, name, mine.epoch, length + i, token, finish=finish)
            return token

        refused = 0
        history = [1, 2, 3]
        for repeat in range(200):
            turns = await asyncio.gather(turn(first, repeat), turn(second, 1000 + repeat))
            ran = [token for token in turns if token is not None]
            refused += len(turns) - len(ran)
            got = (await stored(first, name)).token_ids.tolist()
            assert ran and got in [history + [t for t in order for _ in range(2)] for order in permutations(ran)]
            history = got
        assert refused, "no two turns ever met"


async def test_owners_that_take_over_from_each_other_never_interleave(kind: Kind, name: str) -> None:
    """Two coordinators resume the same session again and again, each commits until it is fenced off."""
    acknowledged: list[int] = []
    taken = 0

    async def coordinator(store: SessionStore) -> None:
        nonlocal taken
        for _ in range(20):
            taken += 1
            owner, mine = taken, await store.take(name, resume=True)
            length = len(mine.token_ids)
            try:
                for block in range(5):
                    await append(store, name, mine.epoch, length, *[1000 * owner + block] * 3)
                    acknowledged.append(1000 * owner + block)
                    length += 3
            except Aborted:
                continue

    async with opened(kind) as first, opened(kind) as second:
        await first.create(record(name, ids()))
        async with asyncio.TaskGroup() as both:
            both.create_task(coordinator(first))
            both.create_task(coordinator(second))
        final = (await stored(first, name)).token_ids.tolist()
    assert final[::3] == final[1::3] == final[2::3], "a block was torn"
    assert sorted(final[::3]) == sorted(acknowledged), "a commit was lost or came twice"
    owners = [block // 1000 for block in final[::3]]
    runs = [owner for owner, _ in groupby(owners)]
    assert len(runs) == len(set(runs)), "an older owner wrote after a newer one"


Call = Callable[[SessionStore, int], Awaitable[Any]]  # the second argument is the owner's epoch in that store
CALLS = [
    "append",
    "append",
    "append",
    "append",
    "finish",
    "again",
    "again",
    "create",
    "take",
    "resume",
    "replace",
    "release",
    "heartbeat",
    "lapse",
    "expire",
]


@dataclass
class Owner:
    """What a coordinator believes: its epoch in the store under test and in the oracle, and its context."""

    epochs: tuple[int, int] = (1, 1)
    context: list[int] = field(default_factory=lambda: [1, 2, 3])
    calls: list[tuple[Call, tuple[int, int]]] = field(default_factory=list)


async def outcome(call: Awaitable[Any]) -> tuple[str, str, int | None, Any]:
    try:
        return "ok", "", None, await call
    except SpecdecError as error:
        held = error.held if isinstance(error, StoreBehind) else None
        return type(error).__name__, error.reason, held, None


def choose(what: str, name: str, owner: Owner, rng: random.Random) -> Call:
    new = ids(*(rng.randrange(100) for _ in range(rng.randrange(4))))
    finish = rng.choice(["stop", "length"]) if what == "finish" else None
    expected = max(0, len(owner.context) + rng.choice([0, 0, 0, 0, 0, -1, 1]))
    whole = record(name, np.array(owner.context, dtype=np.uint32), running=rng.random() < 0.9)
    held = {"v": rng.randrange(10)}
    calls: dict[str, Call] = {
        "create": lambda store, _: store.create(whole),
        "take": lambda store, _: store.take(name, resume=False),
        "resume": lambda store, _: store.take(name, resume=True),
        "replace": lambda store, epoch: store.replace(replace(whole, epoch=epoch)),
        "release": lambda store, epoch: store.release(name, epoch),
        "heartbeat": lambda store, epoch: store.heartbeat(name, epoch),
    }
    if what in ("append", "finish"):
        return lambda store, epoch: store.append(
            name, epoch=epoch, expected_length=expected, token_ids=new, finish=finish, held=held
        )
    return calls[what]


@pytest.mark.parametrize("kind", ["redis", "rediss", "sentinel", "cluster"], indirect=True)
async def test_random_calls_of_two_owners_end_as_in_the_oracle(kind: Kind) -> None:
    rng, seen = random.Random(20), set[str]()
    async with opened(kind) as store:
        for run in range(30):
            name, oracle, owners, history = f"oracle-{uuid4()}", MemoryKind(), (Owner(), Owner()), list[str]()
            for _ in range(40):
                what, owner = rng.choice(CALLS), rng.choice(owners)
                history.append(f"{owners.index(owner)} {what}")
                if what in ("lapse", "expire"):
                    for each in (kind, oracle):
                        getattr(each, what)(name)
                    continue
                if what == "again" and owner.calls:
                    call, epochs = rng.choice(owner.calls[-3:])
                else:
                    call, epochs = choose("resume" if what == "again" else what, name, owner, rng), owner.epochs
                    owner.calls.append((call, epochs))
                tested = await outcome(call(store, epochs[0]))
                expected = await outcome(call(oracle.store, epochs[1]))
                history.append(f"{expected[:3]}")
                assert tested[:3] == expected[:3], (run, history)
                assert same(await store.load(name), await oracle.store.load(name)), (run, history)
                seen.add(f"{expected[0]} {expected[1]}")
                if isinstance(tested[3], SessionRecord):
                    owner.epochs = (tested[3].epoch, expected[3].epoch)
                    owner.context = tested[3].token_ids.tolist()
                elif what in ("append", "finish") and expected[0] == "ok":
                    owner.context = (await oracle.store.load(name)).token_ids.tolist()  # type: ignore[union-attr]
    assert isinstance(kind, RedisKind) and [key for key, ttl in kind.key_ttls() if ttl < 0] == []
    every = {"ok ", "Aborted SUPERSEDED", "Aborted STORE_CONFLICT", "StoreBehind STORE_BEHIND"}
    every |= {"NotFound SESSION_NOT_FOUND", "FailedPrecondition SESSION_BUSY", "FailedPrecondition SESSION_EXISTS"}
    assert seen == every, "the calls met too few outcomes"
