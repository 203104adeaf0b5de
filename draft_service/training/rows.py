"""Documents cut into rows of equal length: nothing is padded, and a row may hold parts of several documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draft_service.training.corpus import Document
from draft_service.training.features import Features


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Of B rows, T positions and what follows them, T' = T + lookahead. ids: int64[B, T']. taps: bfloat16[B, T',
    layers, H]. logsumexp: float32[B, T']. documents: int64[B, T'], equal where the document is. judged: bool[B, T'],
    whether the token after this position is one to be guessed."""

    length: int
    ids: torch.Tensor
    taps: torch.Tensor
    logsumexp: torch.Tensor
    documents: torch.Tensor
    judged: torch.Tensor

    @property
    def position_ids(self) -> torch.Tensor:
        """int64[B, T]. Counted from the row's start: rotary embeddings only see differences."""
        return torch.arange(self.length, device=self.ids.device).expand(len(self.ids), -1)

    def visible(self) -> torch.Tensor:
        """bool[B, 1, T, T]: each position sees itself and what stands before it in its document."""
        documents = self.documents[:, : self.length]
        same = documents[:, :, None] == documents[:, None, :]
        return (same & torch.ones_like(same[0]).tril())[:, None]

    def together(self, ahead: int) -> torch.Tensor:
        """bool[B, T]: whether the position `ahead` further on belongs to the same document."""
        return self.documents[:, : self.length] == self.documents[:, ahead : ahead + self.length]

    def to(self, device: torch.device) -> Batch:
        parts = (self.ids, self.taps, self.logsumexp, self.documents, self.judged)
        return Batch(self.length, *(part.to(device, non_blocking=True) for part in parts))


class Rows:
    """The rows of some documents."""

    def __init__(
        self, documents: Sequence[Document], chosen: Sequence[int], features: Features, length: int, lookahead: int
    ) -> None:
        """chosen: indices of the documents that are used. length: of a row. lookahead: positions beyond its end that a
        draft needs."""
        assert chosen, "no documents"
        self._features, self.length, self._lookahead = features, length, lookahead
        starts = features.starts
        self._positions = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in chosen])
        self._documents = np.repeat(np.array(chosen), [starts[i + 1] - starts[i] for i in chosen])
        self._ids = np.concatenate([documents[i].ids for i in chosen]).astype(np.int64)
        learned = np.concatenate([documents[i].learned for i in chosen])
        same = self._documents[1:] == self._documents[:-1]
        self._judged = np.append(learned[1:] & same, False)

    def __len__(self) -> int:
        """A last row that is not full starts earlier and overlaps the one before it."""
        return max(1, -(-len(self._ids) // self.length))

    def batch(self, rows: Sequence[int]) -> Batch:
        length = self.length + self._lookahead
        firsts = [min(row * self.length, max(0, len(self._ids) - self.length)) for row in rows]
        index = np.array(firsts)[:, None] + np.arange(length)
        beyond = index >= len(self._ids)
        index = np.minimum(index, len(self._ids) - 1)
        flat = self._positions[index]
        taps = torch.from_numpy(self._features.taps[flat]).view(torch.bfloat16)
        # Beyond the end is a document of its own, in which nothing is judged.
        documents = np.where(beyond, -1, self._documents[index])
        judged = self._judged[index] & ~beyond
        parts: list[NDArray[np.generic]] = [self._features.logsumexp[flat], documents, judged]
        return Batch(self.length, torch.from_numpy(self._ids[index]), taps, *map(torch.from_numpy, parts))

    def num_judged(self, rows: Sequence[int]) -> int:
        return int(self.batch_judged(rows).sum())

    def batch_judged(self, rows: Sequence[int]) -> NDArray[np.bool_]:
        parts = [self._judged[row * self.length : (row + 1) * self.length] for row in rows]
        return np.concatenate(parts)


def order(seed: int, epoch: int, rows: int) -> NDArray[np.int64]:
    """int64[rows]: in which order an epoch reads them."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


def chosen_rows(seed: int, step: int, batch: int, rows: int) -> list[int]:
    """The rows of a step, whole epochs one after the other: a function of its arguments, so that a run goes on
    anywhere."""
    wanted = range(step * batch, (step + 1) * batch)
    orders = {epoch: order(seed, epoch, rows) for epoch in {i // rows for i in wanted}}
    return [int(orders[i // rows][i % rows]) for i in wanted]
