"""What the target makes of the data, computed once and read in every epoch: hidden states and the logsumexp of its
logits. With the last layer's state, its final norm and some rows of its head they give its law on the ids of a draft's
head."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draft_service.training.corpus import Document
from draft_service.training.target_parts import TargetParts
from specdec.lm.runner import Runner, Segment

BATCH = 1024  # tokens of one forward, in whole documents


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Of all documents, one after the other. starts: int64[documents + 1], their first tokens. taps: uint16[tokens,
    layers, H], the bits of bfloat16, after each of `layers`. logsumexp: float32[tokens]. Both are memory-mapped."""

    layers: tuple[int, ...]
    starts: NDArray[np.int64]
    taps: NDArray[np.uint16]
    logsumexp: NDArray[np.float32]


def bytes_per_token(layers: int, hidden: int) -> int:
    return layers * hidden * 2 + 4


def fitting(documents: Sequence[Document], token_bytes: int, cache_bytes: int) -> list[Document]:
    """The first documents, as many as the cache may hold."""
    ends = np.cumsum([len(document.ids) for document in documents])
    return list(documents[: int(np.searchsorted(ends, cache_bytes // token_bytes, side="right"))])


class FeatureCache:
    """A folder for one target (dtype included) and one choice of layers. A killed pass is taken up where it stood, and
    a data file that has grown costs only what is new; other data start it anew."""

    def __init__(self, folder: Path, layers: Sequence[int], hidden: int) -> None:
        self._folder = folder
        self._notes = folder / "done"
        self._layers, self._hidden = tuple(layers), hidden

    def extend(self, runner: Runner, parts: TargetParts, documents: Sequence[Document]) -> Iterator[int]:
        """Compute what is missing; yields how many tokens of the documents are there, after every batch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        starts, chain = _starts(documents), _chain(documents)
        done = self._held(chain)
        taps, logsumexp = self._maps(int(starts[-1]), "r+")
        chain[:done].tofile(self._notes)
        yield int(starts[done])
        while done < len(documents):
            end = _batch_end(starts, done)
            first, last = int(starts[done]), int(starts[end])
            hidden = _pass(runner, documents[done:end], self._layers)
            taps[first:last] = hidden.view(torch.uint16).numpy()
            logsumexp[first:last] = parts.logsumexp(hidden[:, -1].to(parts.head.device)).cpu().numpy()
            with self._notes.open("ab") as notes:
                notes.write(chain[done:end].tobytes())
            done = end
            yield last

    def open(self, documents: Sequence[Document]) -> Features:
        starts = _starts(documents)
        assert self._held(_chain(documents)) == len(documents), "features are missing: extend first"
        return Features(self._layers, starts, *self._maps(int(starts[-1]), "r"))

    def _maps(self, tokens: int, mode: Any) -> tuple[NDArray[np.uint16], NDArray[np.float32]]:
        shapes = ("taps", np.uint16, (tokens, len(self._layers), self._hidden)), ("logsumexp", np.float32, (tokens,))
        maps: list[Any] = []
        for name, dtype, shape in shapes:
            file = self._folder / name
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            if mode == "r+":
                file.touch()
                with file.open("r+b") as stream:
                    stream.truncate(max(size, file.stat().st_size))
            maps.append(np.memmap(file, dtype, mode, shape=shape))
        return maps[0], maps[1]

    def _held(self, chain: NDArray[np.uint64]) -> int:
        """How many of the first documents are in the cache."""
        if not self._notes.exists():
            return 0
        noted = np.fromfile(self._notes, np.uint64)
        shared = min(len(noted), len(chain))
        differs = np.flatnonzero(noted[:shared] != chain[:shared])
        return int(differs[0]) if len(differs) else shared


def _starts(documents: Sequence[Document]) -> NDArray[np.int64]:
    return np.cumsum([0, *(len(document.ids) for document in documents)])


def _chain(documents: Sequence[Document]) -> NDArray[np.uint64]:
    """uint64[documents]: each identifies its document together with all before it."""
    digest, chain = hashlib.sha256(), []
    for document in documents:
        digest.update(len(document.ids).to_bytes(4, "little") + document.ids.tobytes())
        chain.append(int.from_bytes(digest.digest()[:8], "little"))
    return np.array(chain, dtype=np.uint64)


def _batch_end(starts: NDArray[np.int64], first: int) -> int:
    end = int(np.searchsorted(starts, starts[first] + BATCH, side="right")) - 1
    return min(max(end, first + 1), len(starts) - 1)


def _pass(runner: Runner, documents: Sequence[Document], layers: tuple[int, ...]) -> torch.Tensor:
    """bfloat16[tokens, layers, H]."""
    sequences = [runner.new_sequence() for _ in documents]
    try:
        segments = [
            Segment(sequence, document.ids, tapped=len(document.ids))
            for sequence, document in zip(sequences, documents, strict=True)
        ]
        return torch.cat([computed.hidden for computed in runner.compute(segments, layers)]).bfloat16().cpu()
    finally:
        for sequence in sequences:
            sequence.discard()
