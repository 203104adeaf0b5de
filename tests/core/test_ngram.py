from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.ngram import NO_MATCH, expected_accepted, lookup, propose


def guess(context: list[int], k: int, **limits: int) -> list[int]:
    got = propose(np.array(context, np.uint32), k, **limits)
    assert got.dtype == np.uint32
    return [int(token) for token in got]


def oracle(context: list[int], k: int, shortest: int, longest: int, window: int) -> list[int]:
    """Longest suffix first, latest occurrence first, token by token."""
    recent = context[-window:]
    for length in range(min(longest, len(recent) - 1), shortest - 1, -1):
        suffix = recent[-length:]
        for start in range(len(recent) - length - 1, -1, -1):
            if recent[start : start + length] == suffix:
                following = recent[start + length :]
                return [following[i % len(following)] for i in range(k)]
    return []


@given(
    context=st.lists(st.integers(0, 3), max_size=40),
    k=st.integers(0, 12),
    shortest=st.integers(1, 3),
    more=st.integers(0, 5),
    window=st.integers(1, 45),
)
@settings(derandomize=True, deadline=None, max_examples=500)
def test_the_search_equals_the_obvious_one(context: list[int], k: int, shortest: int, more: int, window: int) -> None:
    got = guess(context, k, shortest=shortest, longest=shortest + more, window=window)
    assert got == oracle(context, k, shortest, shortest + more, window)


@given(
    context=st.lists(st.sampled_from([0, 1, 256, 257, 1 << 24, (1 << 24) + 1, 0x01010101]), max_size=24),
    shortest=st.integers(1, 3),
)
@settings(derandomize=True, deadline=None, max_examples=500)
def test_bytes_that_match_across_tokens_are_no_match(context: list[int], shortest: int) -> None:
    """Ids whose bytes are those of their neighbours, shifted."""
    assert guess(context, 3, shortest=shortest, longest=8, window=99) == oracle(context, 3, shortest, 8, 99)


@given(matched=st.integers(1, 8), k=st.integers(0, 20))
@settings(derandomize=True, deadline=None)
def test_the_score_is_the_sum_of_the_chances_along_the_chain(matched: int, k: int) -> None:
    chance, total = 1.0, 0.0
    for right in range(k):
        chance *= (matched + right) / (matched + right + 2)
        total += chance
    assert expected_accepted(matched, k) == pytest.approx(total)


def test_a_lookup_says_how_long_its_match_is() -> None:
    context = np.array([1, 2, 3, 4, 5, 1, 2, 3], np.uint32)
    found = lookup(context, 2)
    assert found.matched == 3 and found.ids.tolist() == [4, 5]
    assert found.score(1) == pytest.approx(3 / 5)
    assert lookup(context[:5], 2) is NO_MATCH and NO_MATCH.score(4) == 0


@pytest.mark.scenario("B42")
def test_a_match_needs_no_eos_id() -> None:
    """The reported ids: 7 8 stood before 9 10 11. No end of text is known or assumed."""
    assert guess([5, 6, 7, 8, 9, 10, 11, 7, 8], 3) == [9, 10, 11]


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert guess([1, 2, 3, 40, 9, 2, 3, 50, 1, 2, 3], 1) == [40]


def test_the_latest_of_equal_matches_wins() -> None:
    assert guess([2, 3, 40, 2, 3, 50, 2, 3], 1) == [50]


def test_one_token_alone_is_no_match_by_default() -> None:
    assert guess([1, 2, 3, 2], 4) == []
    assert guess([1, 2, 3, 2], 4, shortest=1) == [3, 2, 3, 2]


def test_a_repeating_text_is_guessed_to_go_on_repeating() -> None:
    assert guess([7, 1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert guess([1, 1, 1], 4) == [1, 1, 1, 1]


def test_what_lies_before_the_window_is_not_seen() -> None:
    text = [1, 2, 9, *range(100, 120), 1, 2]
    assert guess(text, 1) == [9]
    assert guess(text, 1, window=20) == []


@pytest.mark.parametrize("context", [[], [1], [1, 2], [1, 2, 3, 4, 5]])
def test_no_match_is_an_empty_draft(context: list[int]) -> None:
    assert guess(context, 4) == []


def test_the_context_is_left_alone() -> None:
    context = np.array([1, 2, 3, 1, 2], np.uint32)
    before = context.copy()
    propose(context, 2)[:] = 77
    np.testing.assert_array_equal(context, before)


def test_a_long_context_costs_little() -> None:
    """Well under .2 ms of CPU for 8k tokens, the worst text included; the bound leaves ten times that."""
    for context in (np.zeros(9000, np.uint32), np.random.default_rng(0).integers(0, 50, 9000, dtype=np.uint32)):
        start = time.process_time()
        for _ in range(200):
            propose(context, 8)
        assert (time.process_time() - start) / 200 < 2e-3
