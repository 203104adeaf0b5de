"""Equal contexts are computed once, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specdec.lm.kv import KVPool
from specdec.lm.loading import load_model
from specdec.lm.network import BLOCK
from specdec.lm.prefix_cache import PrefixCache, chain_digest, root_digest
from specdec.lm.runner import Runner, Segment
from tests.lm.rows import RecordedRows, check_accounts, expected, held, ids, new_pool, write
from tests.tiny_models import FAMILIES

V = 97
TOLERANCE = 1e-4  # of float32 logits that are a few units large


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, n).astype(np.uint32)


def cached(pool: KVPool, token_ids: np.ndarray, salt: bytes = b"") -> int:
    """Tokens that a new sequence would find."""
    sequence = pool.new_sequence(salt)
    found = sequence.adopt(token_ids)
    sequence.release()
    return found


def write_and_release(pool: KVPool, storage: RecordedRows, token_ids: np.ndarray, salt: bytes = b"") -> None:
    sequence = pool.new_sequence(salt)
    sequence.adopt(token_ids)
    write(storage, sequence, token_ids[sequence.num_context :])
    sequence.release()


def test_a_digest_depends_on_the_block_on_all_before_it_and_on_the_salt() -> None:
    a, b = random_ids(BLOCK, 1), random_ids(BLOCK, 2)
    roots = [root_digest(b""), root_digest(b"key")]
    digests = [chain_digest(root, block) for root in roots for block in (a, b)]
    digests += [chain_digest(parent, block) for parent in digests for block in (a, b)]
    assert len(set(digests)) == 12


def test_what_is_idle_is_evicted_in_the_order_in_which_it_was_let_go() -> None:
    cache = PrefixCache()
    for block in range(4):
        cache.add(bytes([block]), block)
    for block in (2, 0, 1):
        cache.set_idle(block)
    cache.set_held(0)
    cache.set_idle(0)
    assert [cache.evict() for _ in range(cache.num_idle)] == [2, 1, 0]
    assert cache.evictions == 3
    assert [cache.find(bytes([block])) for block in range(4)] == [None, None, None, 3]


@pytest.mark.parametrize(("length", "found"), [(31, 0), (32, 32), (63, 32), (64, 64), (70, 64), (96, 64)])
def test_full_blocks_are_found_and_no_others(length: int, found: int) -> None:
    pool, storage = new_pool(20 * BLOCK)
    context = random_ids(96)
    write_and_release(pool, storage, context[:80])
    assert cached(pool, context[:length]) == found
    assert pool.kv_free == pool.capacity, "what only the cache keeps is free"


def test_only_context_is_published_drafts_once_they_came_true() -> None:
    pool, storage = new_pool(20 * BLOCK)
    context = random_ids(BLOCK + 8)
    sequence = pool.new_sequence()
    write(storage, sequence, context[: BLOCK - 4], context[BLOCK - 4 :], np.arange(12))
    assert cached(pool, context) == 0
    sequence.rewind(context[: BLOCK + 2])
    assert cached(pool, context) == BLOCK


def test_a_sequence_that_holds_some_of_it_adopts_the_rest() -> None:
    """Also in the middle of a block, which it then has whole."""
    pool, storage = new_pool(20 * BLOCK)
    context = random_ids(3 * BLOCK + 5)
    write_and_release(pool, storage, context)
    sequence = pool.new_sequence()
    write(storage, sequence, context[:BLOCK])
    sequence.rewind(context[: BLOCK - 7])
    assert sequence.adopt(context) == 2 * BLOCK + 7 == sequence.adopted
    assert held(storage, sequence) == expected(sequence)
    assert sequence.adopt(context) == 0
    check_accounts(pool, [sequence])
    sequence.rewind(context)
    assert sequence.adopted == 0


def test_two_that_compute_the_same_hold_it_once() -> None:
    pool, storage = new_pool(20 * BLOCK)
    sequences = [pool.new_sequence() for _ in range(3)]
    for sequence in sequences:
        write(storage, sequence, random_ids(4 * BLOCK + 3))
    assert pool.capacity - pool.kv_free == (4 + 3) * BLOCK
    for sequence in sequences:
        assert held(storage, sequence) == expected(sequence)
    check_accounts(pool, sequences)


def test_sequences_of_different_salts_share_nothing() -> None:
    pool, storage = new_pool(20 * BLOCK)
    context = random_ids(2 * BLOCK)
    write_and_release(pool, storage, context, salt=b"one key")
    assert cached(pool, context, salt=b"one key") == 2 * BLOCK
    assert cached(pool, context) == cached(pool, context, salt=b"another key") == 0


def test_room_is_made_of_free_blocks_first_then_of_what_was_used_longest_ago_the_deepest_first() -> None:
    pool, storage = new_pool(8 * BLOCK)
    contexts = [random_ids(3 * BLOCK, seed) for seed in (1, 2)]
    for context in contexts[::-1]:  # the first is written last, but the second is asked for last
        write_and_release(pool, storage, context)
    newcomer = pool.new_sequence()
    found = []
    for blocks in range(1, 9):
        newcomer.reserve(blocks * BLOCK)
        found.append(tuple(cached(pool, context) // BLOCK for context in contexts))
    assert found == [(3, 3), (3, 3), (2, 3), (1, 3), (0, 3), (0, 2), (0, 1), (0, 0)]
    assert pool.evictions == 6 and pool.kv_free == 0


def test_what_was_discarded_is_found_by_nobody_and_harms_nobody() -> None:
    pool, storage = new_pool(20 * BLOCK)
    context = random_ids(3 * BLOCK)
    first, second = pool.new_sequence(), pool.new_sequence()
    write(storage, first, context)
    second.adopt(context[: 2 * BLOCK])
    first.discard()
    assert cached(pool, context) == 0 and first.num_rows == 0
    assert held(storage, second) == expected(second)
    second.release()
    check_accounts(pool, [])
    assert pool.kv_free == pool.capacity and cached(pool, context) == 0


@pytest.fixture(scope="module")
def runners(tiny_folders: dict[str, Path]) -> dict[str, Runner]:
    return {
        family: Runner(load_model(str(folder), dtype="float32", device="cpu"), 2000)
        for family, folder in tiny_folders.items()
    }


def logits_of(runner: Runner, context: np.ndarray, *, salt: bytes = b"", cut: int = 1) -> tuple[torch.Tensor, int]:
    """Logits at the last `cut` tokens, in one forward over what a new sequence does not find; tokens found."""
    sequence = runner.pool.new_sequence(salt)
    found = sequence.adopt(context[:-cut])
    [logits] = runner.forward([Segment(sequence, context[found:], wanted=cut)])
    sequence.release()
    return logits, found


def farthest(runner: Runner, contexts: list[np.ndarray]) -> tuple[float, int]:
    """Greatest difference between logits with and without hits; tokens found in all."""
    worst, found = 0.0, 0
    for i, context in enumerate(contexts):
        fresh, none = logits_of(runner, context, salt=bytes([i]), cut=9)
        assert none == 0
        again, hits = logits_of(runner, context, cut=9)
        worst, found = max(worst, float((again - fresh).abs().max())), found + hits
    return worst, found


def families_of_contexts() -> list[np.ndarray]:
    """Contexts that share beginnings, and blocks behind different beginnings."""
    parts = random_ids(4 * BLOCK, 3).reshape(4, BLOCK)
    orders = ([0, 1, 2], [0, 1, 3], [1, 0, 2], [0, 1, 2, 3], [1, 1, 0], [1, 0, 2])
    return [np.concatenate([parts[order].ravel(), random_ids(9 + i, i)]) for i, order in enumerate(orders)]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_with_hits_are_those_without(runners: dict[str, Runner], family: str) -> None:
    worst, found = farthest(runners[family], families_of_contexts())
    assert worst < TOLERANCE
    assert found == (2 + 0 + 3 + 1 + 3) * BLOCK
    assert runners[family].pool.kv_free == runners[family].pool.capacity


def test_negative_control_a_hash_of_the_block_alone_is_seen(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(load_model(str(tiny_folders["llama"]), dtype="float32", device="cpu"), 2000)
    salted = chain_digest

    def unchained(parent: bytes, token_ids: np.ndarray) -> bytes:
        """Only what is not salted is mixed up: the fresh logits stay right."""
        known[parent] = known.get(parent, parent)
        digest = salted(known[parent], token_ids)
        known[digest] = known[parent]
        return digest

    known: dict[bytes, bytes] = {}
    monkeypatch.setattr("specdec.lm.kv.chain_digest", unchained)
    worst, _ = farthest(runner, families_of_contexts())
    assert worst > 100 * TOLERANCE


def test_an_empty_context_finds_nothing() -> None:
    pool, _ = new_pool(BLOCK)
    assert pool.new_sequence().adopt(ids()) == 0
