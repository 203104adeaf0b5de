"""Keys and values of heads that continue the target's features: one sequence per session, of the positions whose
features are known."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count

import numpy as np

from draft_service.session import DraftSession
from specdec.core.errors import ResourceExhausted
from specdec.core.features import FeatureRows
from specdec.core.tree import Ids
from specdec.lm.kv import KVPool, KVSequence


class FeatureSequence:
    """Row r of `rows` is of the feature at position start + r and the token behind it, which names the row. Its context
    rows are of true features; estimated ones are tree rows, and live as long as a draft."""

    def __init__(self, rows: KVSequence) -> None:
        self.rows = rows
        self.start = 0
        self._context: Ids = np.zeros(0, dtype=np.uint32)

    @property
    def end(self) -> int:
        """The position whose feature comes next."""
        return self.start + self.rows.num_context

    def rewind(self, context: Ids, end: int) -> None:
        """Keep the rows of features before end - 1, the last one that is known, whose logits are wanted again; and only
        those that depend on nothing but what `context` begins with. A feature depends on all tokens up to its own, also
        on those before `start`."""
        shared = min(len(context), len(self._context))
        differs = np.flatnonzero(context[:shared] != self._context[:shared])
        kept = min(int(differs[0]) if len(differs) else shared, end) - 1 - self.start
        self.rows.rewind(self.rows.token_ids[: max(0, kept)])
        self._context = context


class FeatureSequences:
    """The sequences of all sessions in one pool. Where it is full, the sessions least recently drafted for lose theirs.

    No two share rows, though their tokens be the same: a row depends on its feature too. So every sequence has a salt
    of its own."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._held: dict[DraftSession, FeatureSequence] = {}  # least recently used first
        self._salts: Iterator[int] = count()

    def begin(self, session: DraftSession, context: Ids, features: FeatureRows) -> FeatureSequence:
        """The session's sequence with what it holds of this context, a new one where the features do not go on where it
        ends."""
        held = self._held.pop(session, None)
        if held is not None:
            held.rewind(context, features.end)
            if not (held.rows.num_context and features.offset <= held.end):
                held.rows.discard()
                held = None
        if held is None:
            held = FeatureSequence(self._pool.new_sequence(next(self._salts).to_bytes(8, "little")))
            held.start = features.offset
            held.rewind(context, features.end)
        self._held[session] = held
        return held

    def reserve(self, sequence: FeatureSequence, rows: int, busy: Collection[DraftSession]) -> bool:
        """Make room for `rows` rows in all, taking it from sessions that are not busy. Whether there is."""
        idle = iter([session for session in self._held if session not in busy])
        while True:
            try:
                sequence.rows.reserve(rows)
                return True
            except ResourceExhausted:
                victim = next(idle, None)
            if victim is None:
                return False
            self.drop(victim)

    def drop(self, session: DraftSession) -> None:
        """Forget the session's rows, if it has any. Nobody could find them again."""
        if (held := self._held.pop(session, None)) is not None:
            held.rows.discard()
