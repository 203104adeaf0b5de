"""Random calls of two owners, late duplicates and lost keys: every store ends where the memory store ends."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from coordinator.session import SessionRecord
from coordinator.store import SessionStore, StoreBehind
from specdec.core.errors import SpecdecError
from tests.coordinator.store.kinds import Kind, MemoryKind, RedisKind, ids, opened, record, same

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
