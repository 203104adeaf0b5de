"""Hidden states of the target on their way to a drafter: rows of opaque bytes, one per context position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.core.verification import VerifyForm

FEATURE_WINDOW = 64  # context positions at most whose hidden states are sent where none have been sent before
SCALE_BYTES = 4  # of the scale of one layer of one row


def row_bytes(layers: int, size: int) -> int:
    """Bytes of one row: of `layers` layers, a scale and `size` int8 values each."""
    return layers * (SCALE_BYTES + size)


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """`rows` rows of one size, of the positions offset, offset + 1, ... A row is one position: a block per layer, all
    of one size (`specdec.lm.features` says what is in it)."""

    offset: int
    rows: int
    data: bytes

    def __post_init__(self) -> None:
        assert self.offset >= 0 and self.rows >= 0, "positions and rows are counts"
        whole = len(self.data) % self.rows == 0 if self.rows else not self.data
        assert whole, f"{len(self.data)} bytes are not {self.rows} rows of one size"

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.offset + self.rows

    @property
    def row_bytes(self) -> int:
        """Of one row, 0 where there is none."""
        return len(self.data) // self.rows if self.rows else 0

    def take(self, indices: Sequence[int]) -> FeatureRows:
        """The rows at these indices, in this order, as those of the positions from `offset` on."""
        return FeatureRows(self.offset, len(indices), self._table()[np.array(indices, dtype=np.int64)].tobytes())

    def tail(self, rows: int) -> FeatureRows:
        """The last `rows` rows, or all if there are fewer."""
        return self.since(self.end - min(rows, self.rows))

    def since(self, position: int) -> FeatureRows:
        """The rows of `position` and behind it."""
        start = min(max(position, self.offset), self.end)
        return FeatureRows(start, self.end - start, self.data[(start - self.offset) * self.row_bytes :])

    def before(self, position: int) -> FeatureRows:
        """The rows of positions below `position`."""
        rows = min(max(position - self.offset, 0), self.rows)
        return FeatureRows(self.offset, rows, self.data[: rows * self.row_bytes])

    def joined(self, later: FeatureRows) -> FeatureRows:
        """One run of both. Where they overlap `later` holds; whatever does not touch it, or has rows of another size,
        is of no use beside it and is dropped."""
        if not later.rows:
            return self
        kept = self.before(later.offset)
        if not kept.rows or kept.end < later.offset or kept.row_bytes != later.row_bytes:
            return later
        return FeatureRows(kept.offset, kept.rows + later.rows, kept.data + later.data)

    def layers(self, chosen: Sequence[int], of: Sequence[int]) -> FeatureRows:
        """Only the blocks of the layers `chosen`, in their order, of rows that have the layers `of`."""
        if tuple(chosen) == tuple(of) or not self.rows:
            return self
        assert self.row_bytes % len(of) == 0, f"rows of {self.row_bytes} bytes have not {len(of)} layers"
        blocks = self._table().reshape(self.rows, len(of), -1)
        return FeatureRows(self.offset, self.rows, blocks[:, [of.index(layer) for layer in chosen]].tobytes())

    def _table(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.data, np.uint8).reshape(self.rows, self.row_bytes)


NO_FEATURES = FeatureRows(0, 0, b"")


@dataclass(frozen=True, slots=True)
class VerifiedFeatures:
    """What comes with a verification: `context_rows` rows of the last positions before the root, then those of nodes:
    all in wire order (PQ, TYPICAL), or the root and what the walk along y accepts (Y). offset: of the first row."""

    rows: FeatureRows
    context_rows: int

    def accepted(self, nodes: Sequence[int], form: VerifyForm) -> FeatureRows:
        """Of the context, the root and the accepted nodes: a run of positions. nodes: from the root down, root
        excluded, as in `Acceptance`."""
        places = range(1, len(nodes) + 1) if form is VerifyForm.Y else nodes
        head = self.context_rows
        return self.rows.take([*range(head + 1), *(head + place for place in places)])
