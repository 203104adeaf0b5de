"""Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975): guess that what followed these last tokens before, here or in
earlier outputs, follows them again, each continuation as likely as it was frequent.

In place of a suffix tree, an index over a ring of tokens as LZ77 coders have it: every token's last few tokens are
hashed, and occurrences of one hash form a chain, newest first. A token costs two entries, memory is fixed, the oldest
text goes by being overwritten, and what a tree would have counted is counted among the newest occurrences."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.core.tree import MAX_NODES, DraftTree, Ids

GRAMS = (6, 2)  # tokens hashed; a match of the longer is looked for first, so that a frequent pair cannot hide it
LONGEST = 32  # matched tokens that count
NEWEST = 64  # occurrences looked at
FACTOR = 2.0  # draft depth at most, over the match's length
LEAST = 0.1  # chance below which a node is not worth its row
ESCAPE = 2.0  # pseudo-count of "none of these", over the match's length
NONE = -1  # where one text ends, and what lies outside the ring

_ODD = np.uint64(0x9E3779B97F4A7C15)  # spreads ids over 64 bits

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Guess:
    """tree: best nodes first, parents before children; score: its nodes' chances, summed, which is how many are
    expected to be accepted; matched: tokens of the match it rests on, 0: nothing was found."""

    tree: DraftTree
    score: float
    matched: int


class TokenIndex:
    """The last `capacity` tokens of one or several texts. Positions count from 0 and never repeat; a position is held
    while it is among the last `capacity`."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 2 * LONGEST, f"{capacity} tokens hold no match of {LONGEST}"
        self.capacity = capacity
        self.end = 0
        self._start = 0  # of the text that is being written
        self._ring = array("q", [NONE]) * capacity
        self._tokens: Tokens = np.frombuffer(self._ring, dtype=np.int64)  # the same memory
        self._slots = 1 << (capacity - 1).bit_length()
        self._heads = [array("q", [NONE]) * self._slots for _ in GRAMS]
        self._links = [array("q", [NONE]) * capacity for _ in GRAMS]  # the occurrence before this one

    @property
    def held(self) -> int:
        """Tokens held, ends of texts among them."""
        return min(self.end, self.capacity)

    def extend(self, ids: Ids) -> None:
        """Goes on with the present text. ids: uint32[n]."""
        for first in range(0, len(ids), self.capacity // 2):
            self._extend(ids[first : first + self.capacity // 2].astype(np.int64))

    def _extend(self, ids: Tokens) -> None:
        first, ring, capacity = self.end, self._ring, self.capacity
        known = max(self._start, first - max(GRAMS) + 1)
        text = np.concatenate([self._at(np.arange(known, first)), ids])
        for position, token in enumerate(ids.tolist(), first):
            ring[position % capacity] = token
        self.end += len(ids)
        for gram, heads, links in zip(GRAMS, self._heads, self._links, strict=True):
            slots = self._hashed(text, gram)
            skipped = max(0, first - known - gram + 1)  # grams that ended before
            for position, slot in enumerate(slots[skipped:], known + gram - 1 + skipped):
                links[position % capacity] = heads[slot]
                heads[slot] = position

    def close(self) -> None:
        """Ends the present text: no match and no continuation runs over its end."""
        if self.end > self._start:
            self._ring[self.end % self.capacity] = NONE
            self.end += 1
            self._start = self.end

    def rewind(self, length: int) -> None:
        """Forgets all but the first `length` tokens of the present text. Of what was overwritten since, nothing comes
        back."""
        assert 0 <= length <= self.length, f"the text has {self.length} tokens, not {length}"
        for end in range(self.end, self._start + length, -1):
            for gram, heads, links in zip(GRAMS, self._heads, self._links, strict=True):
                if end - self._start >= gram:
                    [slot] = self._hashed(self._at(np.arange(end - gram, end)), gram)
                    heads[slot] = links[(end - 1) % self.capacity]
            self.end = end - 1
            self._ring[self.end % self.capacity] = NONE

    @property
    def length(self) -> int:
        """Of the present text, what was overwritten included."""
        return self.end - self._start

    def occurrences(self, suffix: Tokens, gram: int) -> list[int]:
        """Positions of the newest tokens that end an earlier occurrence of the last `gram` (of GRAMS) tokens of
        `suffix`, newest first; others that share their hash are among them."""
        if len(suffix) < gram:
            return []
        which, [slot] = GRAMS.index(gram), self._hashed(suffix[-gram:], gram)
        links, position = self._links[which], self._heads[which][slot]
        found: list[int] = []
        oldest = self.end - self.capacity
        while oldest < position and position != NONE and len(found) < NEWEST:
            if position < self.end - 1:  # the newest token is the one that is asked about, or has nothing behind it
                found.append(position)
            following = links[position % self.capacity]
            position = following if following < position else NONE  # a link that was overwritten leads astray
        return found

    def around(self, positions: Sequence[int], before: int, after: int) -> tuple[Tokens, Tokens]:
        """int64[n, before], the tokens at each position and before it, nearest first, and int64[n, after], those behind
        it; NONE where there is none of the same text."""
        at = np.array(positions, dtype=np.int64)[:, None]
        back = self._at(at - np.arange(before))
        ahead = self._at(at + 1 + np.arange(after))
        ahead[np.logical_or.accumulate(ahead == NONE, axis=1)] = NONE
        return back, ahead

    def _at(self, positions: Tokens) -> Tokens:
        held = (positions >= max(0, self.end - self.capacity)) & (positions < self.end)
        return np.where(held, self._tokens[positions % self.capacity], NONE)

    def _hashed(self, text: Tokens, gram: int) -> list[int]:
        """The slot of each `gram` tokens of the text, in order."""
        n = len(text) - gram + 1
        if n < 1:
            return []
        values, unsigned = np.zeros(n, dtype=np.uint64), text.astype(np.uint64)
        for i in range(gram):
            values = values * _ODD + unsigned[i : i + n]
        return ((values >> np.uint64(20)) & np.uint64(self._slots - 1)).astype(np.int64).tolist()  # type: ignore[no-any-return]


def propose(indexes: Sequence[TokenIndex], context: Ids, num_draft_tokens: int) -> Guess:
    """A tree of at most num_draft_tokens nodes: the continuations of earlier occurrences of the end of context:
    uint32[n] in any of `indexes`, of the match length whose tree has the best score.

    A node's chance is its parent's times its share among the occurrences that came as far, with ESCAPE / length
    occurrences more that went elsewhere, for a match that is longer is trusted more."""
    suffix = context[-LONGEST:].astype(np.int64)
    depth = min(num_draft_tokens, int(FACTOR * LONGEST), MAX_NODES)
    for gram in GRAMS if depth > 0 else ():
        found = [(index, index.occurrences(suffix, gram)) for index in indexes]
        tables = [index.around(positions, LONGEST, depth) for index, positions in found if positions]
        if tables:
            back, ahead = (np.concatenate(parts) for parts in zip(*tables, strict=True))
            lengths = _matched(back, suffix)
            if lengths.max() >= gram:
                return _best(ahead, lengths, gram, num_draft_tokens)
    return NOTHING


def _best(ahead: Tokens, lengths: Tokens, least: int, num_draft_tokens: int) -> Guess:
    """Of the trees that rest on matches of at least some length, each length from `least` on, the best."""
    best = NOTHING
    for length in sorted({int(n) for n in lengths if n >= least}, reverse=True):
        if best.score >= min(num_draft_tokens, FACTOR * length):
            break  # no tree of this depth is expected to bring more
        guess = _grown(ahead[lengths >= length], length, num_draft_tokens)
        best = max(best, guess, key=lambda g: g.score)
    return best


NOTHING = Guess(DraftTree.chain([]), 0.0, 0)


def _matched(back: Tokens, suffix: Tokens) -> Tokens:
    """int64[n]: tokens of each occurrence that equal the end of `suffix`."""
    wanted = suffix[::-1]
    same = back[:, : len(wanted)] == wanted
    lengths: Tokens = np.logical_and.accumulate(same, axis=1).sum(axis=1, dtype=np.int64)
    return lengths


def _grown(ahead: Tokens, length: int, num_draft_tokens: int) -> Guess:
    """The tree of continuations, grown node by node, the likeliest first."""
    tokens: list[int] = []
    parents: list[int] = []
    score = 0.0
    count = 0  # breaks ties by age
    frontier: list[tuple[float, int, int, int, NDArray[np.int64]]] = []

    def branch(parent: int, depth: int, chance: float, rows: NDArray[np.int64]) -> None:
        nonlocal count
        if depth >= min(ahead.shape[1], int(FACTOR * length)):
            return
        column = ahead[rows, depth]
        total = len(rows) + ESCAPE / (length + depth)
        for token in dict.fromkeys(column.tolist()):
            same = rows[column == token]
            if token != NONE and (likely := chance * len(same) / total) >= LEAST:
                count += 1
                heapq.heappush(frontier, (-likely, count, parent, token, same))

    depths = [0]
    branch(0, 0, 1.0, np.arange(len(ahead)))
    while frontier and len(tokens) < num_draft_tokens:
        likely, _, parent, token, rows = heapq.heappop(frontier)
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        score -= likely
        branch(len(tokens), depths[-1], -likely, rows)
    tree = DraftTree(np.array(tokens, dtype=np.uint32), np.array(parents, dtype=np.int64))
    return Guess(tree, score, length if tokens else 0)
