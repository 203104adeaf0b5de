"""Prompt lookup (Saxena 2023): guess that what followed these last tokens before follows them again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specdec.core.tree import Ids

# A single token nearly always has an earlier occurrence and seldom the same continuation: such drafts only
# widen the verify. Matches beyond eight tokens hardly ever decide between two candidates.
SHORTEST = 2
LONGEST = 8
WINDOW = 8192
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Lookup:
    """ids: uint32[n], what is guessed; matched: tokens of the match it rests on, 0: there is none."""

    ids: Ids
    matched: int

    def score(self, num_draft_tokens: int) -> float:
        """Draft tokens of the first so many that will be accepted, by experience with matches of this length."""
        return expected_accepted(self.matched, min(num_draft_tokens, len(self.ids)))


NO_MATCH = Lookup(np.zeros(0, dtype=np.uint32), 0)


def expected_accepted(matched: int, num_draft_tokens: int) -> float:
    """Accepted tokens of a chain that copies what followed a match. A token is taken to be right with chance m / (m +
    2) behind m matched tokens, and each right one makes the match longer: the sum over the chain is closed."""
    return matched * num_draft_tokens / (matched + num_draft_tokens + 1)


def propose(context: Ids, num_draft_tokens: int, **limits: int) -> Ids:
    """The guesses of `lookup` alone."""
    return lookup(context, num_draft_tokens, **limits).ids


def lookup(
    context: Ids,
    num_draft_tokens: int,
    *,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
    window: int = WINDOW,
) -> Lookup:
    """The continuation of the latest earlier occurrence of the longest suffix of context: uint32[n] that has
    one, among suffixes of shortest..longest tokens and the last `window` tokens: num_draft_tokens of it, or NO_MATCH.

    Where the continuation runs into the end of the context it goes on into itself, as in LZ77: a text that
    repeats with period d is guessed to go on repeating."""
    assert 1 <= shortest <= longest, f"no suffix has {shortest}..{longest} tokens"
    recent = context[-window:]
    last = len(recent) - 1
    if num_draft_tokens < 1 or last < shortest:
        return NO_MATCH
    assert recent.itemsize == TOKEN_BYTES, f"token ids are uint32, not {recent.dtype}"
    data = recent.tobytes()
    found, end = 0, last
    for length in range(shortest, min(longest, last) + 1):
        before = _latest_end(data, length, end)
        if not before:
            break
        found, end = length, before
    if not found:
        return NO_MATCH
    following = recent[end:]
    if len(following) >= num_draft_tokens:
        return Lookup(following[:num_draft_tokens].copy(), found)
    return Lookup(np.resize(following, num_draft_tokens), found)


def _latest_end(data: bytes, length: int, last: int) -> int:
    """Tokens up to the end of the latest occurrence of the last `length` tokens that ends at `last` tokens or before;
    0: there is none. Bytes are searched many times faster than arrays of this size are compared."""
    suffix = data[-TOKEN_BYTES * length :]
    at = data.rfind(suffix, 0, TOKEN_BYTES * last)
    while at % TOKEN_BYTES and at >= 0:  # across tokens
        at = data.rfind(suffix, 0, at + len(suffix) - 1)
    return at // TOKEN_BYTES + length if at >= 0 else 0
