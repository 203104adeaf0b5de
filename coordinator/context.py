"""The committed tokens of a session, growing in place."""

from __future__ import annotations

import numpy as np

from specdec.core.tree import Ids


class Context:
    """`ids` is a read-only view, uint32[len]; it stays valid for as long as nothing is appended."""

    def __init__(self, ids: Ids, capacity: int = 0) -> None:
        self._buffer = np.zeros(max(capacity, len(ids)), dtype=np.uint32)
        self._buffer[: len(ids)] = ids
        self._length = len(ids)

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> Ids:
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return view

    def append(self, ids: Ids) -> None:
        end = self._length + len(ids)
        if end > len(self._buffer):
            grown = np.zeros(max(end, 2 * len(self._buffer)), dtype=np.uint32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : end] = ids
        self._length = end
