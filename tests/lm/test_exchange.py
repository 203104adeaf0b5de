"""Blocks of context leave one pool and enter another, and what is computed behind them does not change by a bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdec.lm.exchange import BlockExchange
from specdec.lm.kv import KVPool
from specdec.lm.loading import load_model
from specdec.lm.network import BLOCK
from specdec.lm.runner import Runner, Segment
from tests.lm.rows import RecordedRows, check_accounts, expected, held, new_pool, write

V = 97


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, n).astype(np.uint32)


def filled(context: np.ndarray, capacity: int = 20 * BLOCK) -> tuple[KVPool, RecordedRows]:
    pool, storage = new_pool(capacity)
    sequence = pool.new_sequence()
    write(storage, sequence, context)
    sequence.release()
    return pool, storage


def contents(exchange: BlockExchange, context: np.ndarray) -> list[np.ndarray]:
    """Of all its full blocks."""
    found = []
    for key in exchange.chain(context):
        found.append(np.empty(exchange.block_bytes, dtype=np.uint8))
        assert exchange.read(key.digest, found[-1])
    return found


def test_a_chain_is_what_a_sequence_of_the_same_tokens_publishes() -> None:
    pool, storage = new_pool(20 * BLOCK)
    for salt in (b"", b"a key"):
        sequence = pool.new_sequence(salt)
        write(storage, sequence, random_ids(3 * BLOCK + 5))
        chain = pool.exchange.chain(random_ids(3 * BLOCK + 5), salt)
        assert [key.digest for key in chain] == list(sequence.digests)
        assert chain == [sequence.key(i) for i in range(3)]
        assert [key.tokens for key in chain] == [
            random_ids(3 * BLOCK)[i * BLOCK : (i + 1) * BLOCK].tobytes() for i in range(3)
        ]


def test_what_one_pool_computed_another_goes_on_with() -> None:
    context = random_ids(4 * BLOCK + 7)
    theirs, _ = filled(context)
    pool, storage = new_pool(20 * BLOCK)
    digests = [key.digest for key in pool.exchange.chain(context)]
    assert pool.exchange.held(digests) == 0
    assert pool.exchange.install(digests, contents(theirs.exchange, context)) == 4
    assert pool.exchange.held(digests) == 4 and pool.kv_free == pool.capacity
    sequence = pool.new_sequence()
    assert sequence.adopt(context) == 4 * BLOCK
    assert held(storage, sequence) == expected(sequence)
    check_accounts(pool, [sequence])


def test_what_is_here_already_is_neither_lost_nor_doubled() -> None:
    """The first blocks are held by a session, the next lie idle, one is here without the one before it."""
    context = random_ids(6 * BLOCK)
    theirs, _ = filled(context)
    pool, storage = filled(context[: 3 * BLOCK])
    session = pool.new_sequence()
    session.adopt(context[:BLOCK])
    digests = [key.digest for key in pool.exchange.chain(context)]
    stray = contents(theirs.exchange, context)[4]
    pool._blocks.install([digests[4]], [stray], None)
    assert pool.exchange.install(digests, contents(theirs.exchange, context)[1:]) == 3
    assert pool.exchange.held(digests) == 6
    check_accounts(pool, [session])
    whole = pool.new_sequence()
    whole.adopt(context)
    assert held(storage, whole) == expected(whole)


def test_no_more_comes_in_than_there_is_room_for_and_the_chain_never_makes_room_for_itself() -> None:
    context = random_ids(6 * BLOCK)
    theirs, _ = filled(context)
    pool, storage = new_pool(4 * BLOCK)
    other = pool.new_sequence()
    write(storage, other, random_ids(BLOCK, seed=1))
    digests = [key.digest for key in pool.exchange.chain(context)]
    parts = contents(theirs.exchange, context)
    assert pool.exchange.install(digests[:2], parts[:2]) == 2
    assert pool.exchange.install(digests, parts[2:]) == 1
    assert pool.exchange.held(digests) == 3
    check_accounts(pool, [other])
    assert held(storage, other) == expected(other)


def test_blocks_behind_a_gap_stay_out() -> None:
    context = random_ids(3 * BLOCK)
    theirs, _ = filled(context)
    pool, _ = new_pool(20 * BLOCK)
    digests = [key.digest for key in pool.exchange.chain(context)]
    assert pool.exchange.install(digests, contents(theirs.exchange, context)[1:]) == 0
    assert pool.exchange.held(digests) == 0


def test_another_model_or_layout_knows_no_block_by_the_same_digest() -> None:
    pools = [KVPool(RecordedRows(4), 4 * BLOCK, model) for model in ("a", "b")]
    storage = RecordedRows(4)
    storage.layout = "laid out otherwise"
    pools.append(KVPool(storage, 4 * BLOCK, "a"))
    assert len({pool.exchange.chain(random_ids(BLOCK))[0].digest for pool in pools}) == 3


@pytest.mark.parametrize("network", ["native", "lean", "stock"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_behind_blocks_that_another_process_computed_have_the_same_bits(
    tiny_folders: dict[str, Path], network: str, dtype: str
) -> None:
    loaded = load_model(str(tiny_folders["llama"]), dtype=dtype, device="cpu", network=network)  # type: ignore[arg-type]
    context = random_ids(3 * BLOCK + 9)
    first, second = Runner(loaded, 8 * BLOCK), Runner(loaded, 8 * BLOCK)
    sequence = first.new_sequence()
    first.forward([Segment(sequence, context[:-1], wanted=1)])
    [wanted] = first.forward([Segment(sequence, context[-1:], wanted=1)])

    keys = second.pool.exchange.chain(context)
    assert second.pool.exchange.install([key.digest for key in keys], contents(first.pool.exchange, context)) == 3
    adopted = second.new_sequence()
    assert adopted.adopt(context[:-1]) == 3 * BLOCK
    tail = context[3 * BLOCK : -1]
    second.forward([Segment(adopted, tail, wanted=1)])
    [found] = second.forward([Segment(adopted, context[-1:], wanted=1)])
    if network == "native":
        assert (found == wanted).all()
    else:  # a forward of fewer rows sums in another order there
        assert np.allclose(found.numpy(), wanted.numpy(), atol=1e-4 if dtype == "float32" else 0.1)
