"""The suffix index against a slow, obvious one; trees by hand; memory and rollback."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.suffix import ESCAPE, FACTOR, GRAMS, LEAST, LONGEST, NEWEST, NOTHING, Guess, TokenIndex, propose
from specdec.core.tree import Ids

CAPACITY = 128


def ids(values: Sequence[int]) -> Ids:
    return np.array(values, dtype=np.uint32)


def index_of(*texts: Sequence[int], capacity: int = CAPACITY) -> TokenIndex:
    """The last text is left open."""
    index = TokenIndex(capacity)
    for i, text in enumerate(texts):
        if i:
            index.close()
        index.extend(ids(text))
    return index


def paths(guess: Guess) -> list[list[int]]:
    return [guess.tree.path(node) for node in range(1, guess.tree.num_nodes)]


# The obvious way: every position of every text compared token by token.


def occurrences(texts: Sequence[Sequence[int]], context: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Length of the match and what follows, for each place of the texts; the last text is the context itself."""
    out = []
    for text in texts:
        for end in range(1, len(text) + (text is not texts[-1])):
            n = 0
            while n < min(end, len(context), LONGEST) and text[end - 1 - n] == context[-1 - n]:
                n += 1
            if n >= min(GRAMS):
                out.append((n, list(text[end:])))
    return out


def chance_of(path: Sequence[int], found: list[list[int]], length: int) -> float:
    """Each token's share among the occurrences that came as far, some having gone elsewhere."""
    chance = 1.0
    for depth in range(len(path)):
        came = [after for after in found if after[:depth] == list(path[:depth])]
        same = [after for after in came if after[: depth + 1] == list(path[: depth + 1])]
        chance *= len(same) / (len(came) + ESCAPE / (length + depth))
    return chance


def best_tree(found: list[list[int]], length: int, k: int) -> dict[tuple[int, ...], float]:
    """All continuations with their chances, the k likeliest of those that are likely enough and not too deep."""
    prefixes = {tuple(after[:n]) for after in found for n in range(1, min(len(after), int(FACTOR * length), k) + 1)}
    chances = {path: chance_of(path, found, length) for path in prefixes}
    likely = sorted((path for path in chances if chances[path] >= LEAST), key=lambda path: -chances[path])
    return {path: chances[path] for path in likely[:k]}


texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3)


@given(texts=texts, k=st.integers(1, 10))
@settings(derandomize=True, deadline=None, max_examples=400)
def test_the_index_finds_what_the_obvious_search_finds(texts: list[list[int]], k: int) -> None:
    """The same score; and every node with the chance that counting by hand gives it."""
    context = texts[-1]
    guess = propose([index_of(*texts)], ids(context), k)
    found = occurrences(texts, context)
    longest = max((n for n, _ in found), default=0)
    if longest >= max(GRAMS):
        found = [(n, after) for n, after in found if n >= max(GRAMS)]
    scores = {
        length: sum(best_tree([after for n, after in found if n >= length], length, k).values())
        for length in {n for n, _ in found}
    }
    assert guess.score == pytest.approx(max(scores.values(), default=0.0))
    if guess.matched:
        after = [after for n, after in found if n >= guess.matched]
        chances = [chance_of(path, after, guess.matched) for path in paths(guess)]
        assert chances == sorted(chances, reverse=True), "best nodes come first"
        assert sum(chances) == pytest.approx(guess.score)
        assert guess.tree.num_draft_tokens == len({tuple(path) for path in paths(guess)}) <= k
    else:
        assert guess is NOTHING


def test_more_frequent_continuations_are_likelier_and_branches_are_kept() -> None:
    index = index_of([1, 2, 3], [1, 2, 3], [1, 2, 4], [9, 1, 2])
    guess = propose([index], ids([9, 1, 2]), 2)
    assert paths(guess) == [[3], [4]]
    assert guess.score == pytest.approx(2 / 4 + 1 / 4)


def test_a_longer_match_is_trusted_more() -> None:
    short = propose([index_of([1, 2, 3], [1, 2])], ids([1, 2]), 1)
    long = propose([index_of([7, 6, 5, 4, 1, 2, 3], [7, 6, 5, 4, 1, 2])], ids([7, 6, 5, 4, 1, 2]), 1)
    assert (short.matched, long.matched) == (2, 6)
    assert short.score == pytest.approx(1 / 2) and long.score == pytest.approx(6 / 8)


def test_a_draft_is_no_deeper_than_its_match_allows() -> None:
    text = [1, 2, *range(10, 30)]
    guess = propose([index_of(text, [1, 2])], ids([1, 2]), 20)
    assert guess.tree.num_draft_tokens <= FACTOR * 2


def test_no_match_runs_over_the_end_of_a_text() -> None:
    assert propose([index_of([5, 1], [2, 3], [1, 2])], ids([1, 2]), 4) is NOTHING
    assert paths(propose([index_of([1, 2, 3], [4], [1, 2])], ids([1, 2]), 4)) == [[3]]


def test_several_indexes_are_counted_together() -> None:
    own, shared = index_of([8, 1, 2, 3, 1, 2]), index_of([1, 2, 3], [1, 2, 4], [0])
    guess = propose([own, shared], ids([8, 1, 2, 3, 1, 2]), 4)
    assert guess.tree.path(1) == [3] and [4] in paths(guess)


def test_a_frequent_pair_does_not_hide_a_long_match() -> None:
    """The one place that fits in full lies behind more places of its last two tokens than are looked at."""
    rare = [20, 21, 22, 23, 1, 2, 30, 31]
    index = index_of(rare, [1, 2, 9] * (2 * NEWEST), rare[:6], capacity=4096)
    assert propose([index], ids(rare[:6]), 2).tree.token_ids.tolist() == [30, 31]


@given(
    steps=st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 2), max_size=12)), max_size=8),
    before=st.lists(st.integers(0, 2), max_size=20),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_a_rewound_index_is_as_if_the_rest_had_never_been(
    steps: list[tuple[int, list[int]]], before: list[int]
) -> None:
    index, text = index_of(before, []), list[int]()
    for back, more in steps:
        text = text[: max(0, len(text) - back)]
        index.rewind(len(text))
        index.extend(ids(more))
        text += more
    fresh = index_of(before, text)
    got, wanted = (propose([each], ids(text), 6) for each in (index, fresh))
    assert (paths(got), got.score, got.matched) == (paths(wanted), wanted.score, wanted.matched)


@given(pieces=st.lists(st.lists(st.integers(0, 3), max_size=90), max_size=12), seed=st.integers(0, 9))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_what_was_overwritten_is_forgotten_and_what_is_held_is_found(pieces: list[list[int]], seed: int) -> None:
    """A small ring, written over many times, against an index of its last tokens alone."""
    index, text = TokenIndex(CAPACITY), list[int]()
    for piece in pieces:
        index.extend(ids(piece))
        text += piece
        assert index.held <= CAPACITY
    recent = index_of(text[-CAPACITY:], capacity=1024)
    got, wanted = (propose([each], ids(text), 5) for each in (index, recent))
    assert got.matched == wanted.matched and got.score == pytest.approx(wanted.score)
    if index.length:  # and rewinding behind it neither fails nor invents tokens
        index.rewind(max(0, index.length - 2 * CAPACITY))
        assert propose([index], ids([0, 1]), 4).tree.num_draft_tokens <= 4


def test_memory_is_bounded_by_the_capacity() -> None:
    index = TokenIndex(CAPACITY)
    sizes = [len(index._ring), *(len(part) for part in (*index._heads, *index._links))]
    rng = np.random.default_rng(0)
    for _ in range(50):
        index.extend(rng.integers(0, 1 << 32, 300).astype(np.uint32))
        index.close()
    assert sizes == [len(index._ring), *(len(part) for part in (*index._heads, *index._links))]
    assert index.held == CAPACITY


def test_the_oldest_text_goes_first() -> None:
    index = TokenIndex(CAPACITY)
    for text in ([1, 2, 3], [4, 5, 6], range(100, 100 + CAPACITY - 6)):
        index.extend(ids(list(text)))
        index.close()
    assert propose([index], ids([1, 2]), 1) is NOTHING
    assert propose([index], ids([4, 5]), 1).tree.token_ids.tolist() == [6]


@pytest.mark.parametrize("context", [[], [1], [1, 2], [7, 7]])
def test_nothing_to_find_is_an_empty_draft(context: list[int]) -> None:
    assert propose([index_of([3, 4, 5, 6], context)], ids(context), 4) is NOTHING or context == [7, 7]
    assert propose([], ids(context), 4) is NOTHING
    assert propose([index_of(context)], ids(context), 0) is NOTHING
