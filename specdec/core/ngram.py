"""Prompt lookup (Saxena 2023): guess that what followed these last tokens before follows them again."""

from __future__ import annotations

import numpy as np

from specdec.core.tree import Ids

# A single token nearly always has an earlier occurrence and seldom the same continuation: such drafts only
# widen the verify. Matches beyond eight tokens hardly ever decide between two candidates.
SHORTEST = 2
LONGEST = 8
WINDOW = 8192


def propose(
    context: Ids,
    num_draft_tokens: int,
    *,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
    window: int = WINDOW,
) -> Ids:
    """The continuation of the latest earlier occurrence of the longest suffix of context: uint32[n] that has
    one, among suffixes of shortest..longest tokens and the last `window` tokens. uint32[num_draft_tokens], or
    empty.

    Where the continuation runs into the end of the context it goes on into itself, as in LZ77: a text that
    repeats with period d is guessed to go on repeating."""
    assert 1 <= shortest <= longest, f"no suffix has {shortest}..{longest} tokens"
    recent = context[-window:]
    last = len(recent) - 1
    if num_draft_tokens < 1 or last < shortest:
        return recent[:0]
    ends = recent[:last] == recent[last]  # True where an occurrence of the suffix ends
    found = int(ends.any())
    while found and found < longest:
        longer = ends.copy()
        longer[:found] = False
        longer[found:] &= recent[: last - found] == recent[last - found]
        if not longer.any():
            break
        ends, found = longer, found + 1
    if found < shortest:
        return recent[:0]
    end = last - 1 - int(np.argmax(ends[::-1]))
    return np.resize(recent[end + 1 :], num_draft_tokens)
