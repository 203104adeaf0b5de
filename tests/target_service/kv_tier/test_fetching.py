"""What comes back is the beginning of the chain, sound, in time, and read once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from specdec.lm.exchange import BlockKey
from target_service.kv_tier.fetching import GROUP, Fetching
from target_service.kv_tier.write_behind import WriteBehind, name_of
from tests.target_service.kv_tier.blocks import IDENTITY, SIZE, DictBlocks, content, keys, sealed

LONG = 10.0


def stored(chain: Sequence[BlockKey], **script: object) -> DictBlocks:
    values = {name_of(key.digest): sealed(IDENTITY, key, content(i)) for i, key in enumerate(chain)}
    return DictBlocks(values, **script)  # type: ignore[arg-type]


def fetching() -> tuple[Fetching, Counter[str], WriteBehind]:
    outcomes = Counter[str]()
    writes = WriteBehind(queue_bytes=1 << 20, budget_bytes=None, ttl=100.0)
    return Fetching(IDENTITY, SIZE, writes, count=lambda outcome: outcomes.update([outcome])), outcomes, writes


def numbers(contents: Sequence[np.ndarray]) -> list[int]:
    assert all((content == content[0]).all() for content in contents)
    return [int(content[0]) for content in contents]


async def test_a_whole_chain_comes_in_order() -> None:
    chain = keys(2 * GROUP + 3)
    fetch, outcomes, writes = fetching()
    assert numbers(await fetch.fetch(stored(chain), chain, LONG)) == list(range(len(chain)))
    assert outcomes == Counter(loaded=len(chain))
    assert writes.lacking([key.digest for key in chain]) == [], "what was read is known to be stored"


@pytest.mark.scenario("B107", "B108")
@pytest.mark.parametrize("missing", [0, 4, GROUP, GROUP + 1])
async def test_only_what_lies_before_the_first_gap_is_used(missing: int) -> None:
    """B107: one of the blocks is gone, evicted before or between look-up and load. B108 (i, ii)."""
    chain = keys(2 * GROUP)
    store = stored(chain)
    del store.values[name_of(chain[missing].digest)]
    fetch, outcomes, writes = fetching()
    assert numbers(await fetch.fetch(store, chain, LONG)) == list(range(missing))
    assert outcomes["missed"] == 1
    assert missing in writes.lacking([key.digest for key in chain]), "it will be stored again"


@pytest.mark.scenario("B108")
async def test_a_damaged_block_is_a_miss_counted_and_deleted() -> None:
    chain = keys(4)
    store = stored(chain)
    name = name_of(chain[2].digest)
    store.values[name] = store.values[name][:-100]
    fetch, outcomes, _ = fetching()
    assert numbers(await fetch.fetch(store, chain, LONG)) == [0, 1]
    assert outcomes == Counter(loaded=3, refused=1) and name not in store.values


async def test_contexts_that_share_a_beginning_share_its_trips() -> None:
    chain = keys(GROUP)
    other = [*chain[: GROUP // 2], *keys(2, seed=5)]
    store = stored(chain, gate=asyncio.Event())
    fetch, _, _ = fetching()
    both = asyncio.gather(fetch.fetch(store, chain, LONG), fetch.fetch(store, other, LONG))
    await asyncio.sleep(0.01)
    assert store.gate is not None
    store.gate.set()
    first, second = await both
    assert (numbers(first), numbers(second)) == (list(range(GROUP)), list(range(GROUP // 2)))
    names = [name for trip in store.trips for name in trip]
    assert len(names) == len(set(names)), "nothing was read twice"


async def test_what_did_not_come_in_time_is_left() -> None:
    """The rest of the chain is computed: a slow store never costs more than it was given."""
    chain = keys(2 * GROUP)
    store = stored(chain)
    fetch, _, _ = fetching()
    get = store.get

    async def dawdling(names: Sequence[str]) -> list[bytes | None]:
        if store.trips:
            await asyncio.Event().wait()
        return await get(names)

    store.get = dawdling  # type: ignore[method-assign]
    assert numbers(await fetch.fetch(store, chain, 0.2)) == list(range(GROUP))
    assert not fetch._flights


async def test_whoever_waits_for_anothers_trip_that_is_given_up_goes_on_without() -> None:
    chain = keys(3)
    store = stored(chain, gate=asyncio.Event())
    fetch, _, _ = fetching()
    hasty, patient = await asyncio.gather(fetch.fetch(store, chain, 0.05), fetch.fetch(store, chain, LONG))
    assert hasty == patient == []


async def test_whoever_gives_up_anothers_trip_gives_it_up_for_nobody_else() -> None:
    chain = keys(3)
    store = stored(chain, gate=asyncio.Event())
    fetch, _, _ = fetching()
    owner = asyncio.create_task(fetch.fetch(store, chain, LONG))
    await asyncio.sleep(0)
    others = [asyncio.create_task(fetch.fetch(store, chain, within)) for within in (0.02, LONG)]
    assert await others[0] == []
    assert store.gate is not None
    store.gate.set()
    assert numbers(await owner) == numbers(await others[1]) == [0, 1, 2]


async def test_a_store_that_is_too_slow_to_answer_at_all_is_learned_to_be_slow() -> None:
    """Else every session that comes would wait for it in vain."""
    chain = keys(4)
    fetch, _, _ = fetching()
    before = fetch.pace.seconds(4)
    for _ in range(3):
        assert await fetch.fetch(stored(chain, gate=asyncio.Event()), chain, 0.05) == []
    assert fetch.pace.seconds(4) > 0.05 > 10 * before


async def test_a_store_that_fails_gives_nothing_and_rests() -> None:
    fetch, outcomes, writes = fetching()
    assert await fetch.fetch(DictBlocks(broken=True), keys(3), LONG) == []
    assert outcomes == Counter(failed=3) and writes.resting
