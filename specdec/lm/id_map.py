"""Drafters whose logits have other columns than the target's vocabulary has ids: heads cut to the ids that the target
really uses (Zhao et al. 2025, "FR-Spec"), and drafters of another tokenizer, cut to the tokens that both have (Timor et
al. 2025, "Accelerating LLM inference with lossless speculative decoding for heterogeneous vocabularies").

Both are exact, because a token without a column has q = 0."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from specdec.core.errors import ConfigError
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids

NO_COLUMN = 0xFFFFFFFF  # beyond every head: whatever counts tokens leaves it out
FIRST = "first:"
ALL = "all"  # of --head-ids: the whole head, whatever a draft folder says


class IdMap:
    """Column c of the logits is the target's token target_ids[c], which the drafter itself calls own_ids[c].

    target_ids rise, so that ties fall to the same tokens as the target's do."""

    def __init__(self, target_ids: Ids, own_ids: Ids | None = None) -> None:
        """target_ids: uint32[columns], distinct, rising. own_ids: uint32[columns]; None: the same ids."""
        assert len(target_ids), "a head without columns"
        assert (np.diff(target_ids.astype(np.int64)) > 0).all(), "target ids must rise"
        self.target_ids = target_ids
        self.own_ids = target_ids if own_ids is None else own_ids
        assert len(self.own_ids) == len(target_ids), "one id of its own for each of the target's"
        self._columns = np.full(int(target_ids[-1]) + 1, NO_COLUMN, dtype=np.uint32)
        self._columns[target_ids] = np.arange(len(target_ids), dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.target_ids)

    def columns(self, ids: Ids) -> Ids:
        """uint32[n]: the columns of the target's ids, NO_COLUMN where there is none."""
        known = ids < len(self._columns)
        return np.where(known, self._columns[np.where(known, ids, 0)], NO_COLUMN).astype(np.uint32)

    def params(self, params: SamplingParams) -> SamplingParams:
        """The same law with columns for ids; what it says of tokens without a column falls away."""
        biased = self._of([id_ for id_, _ in params.logit_bias])
        bias = tuple((c, value) for c, (_, value) in zip(biased, params.logit_bias, strict=True) if c != NO_COLUMN)
        ends = tuple(c for c in self._of(params.end_ids) if c != NO_COLUMN)
        return replace(params, logit_bias=bias, end_ids=ends)

    def only(self, target_ids: Collection[int]) -> IdMap:
        """Of these columns, those of `target_ids`, of which it must have one."""
        kept = np.isin(self.target_ids, np.fromiter(target_ids, dtype=np.uint32))
        return IdMap(self.target_ids[kept], self.own_ids[kept])

    def _of(self, ids: Sequence[int]) -> list[int]:
        columns: list[int] = self.columns(np.array(ids, dtype=np.uint32)).tolist()
        return columns


def read_head_ids(spec: str, vocab_size: int, end_ids: Collection[int]) -> Ids:
    """uint32[n], rising: the ids of a cut head.

    spec: "first:N", the N lowest ids, which byte-level BPE learned first and uses most, and end_ids, the ids that may
    end a turn; or a file: one id a line, a list in .json, an array in .npy. Raises ConfigError."""
    if spec.startswith(FIRST):
        count = spec.removeprefix(FIRST)
        if not (count.isascii() and count.isdigit() and int(count) > 0):
            raise ConfigError("head_ids", spec, "give first:N with N at least 1, or a file of ids")
        wanted = [*range(min(int(count), vocab_size)), *(i for i in end_ids if i < vocab_size)]
    else:
        wanted = _listed(Path(spec))
        if strange := [i for i in wanted if not 0 <= i < vocab_size]:
            raise ConfigError("head_ids", spec, f"holds {strange[0]}, which is no id of a vocabulary of {vocab_size}")
    if not wanted:
        raise ConfigError("head_ids", spec, "names no id")
    return np.unique(np.array(wanted, dtype=np.uint32))


def _listed(file: Path) -> list[int]:
    try:
        if file.suffix == ".npy":
            values = np.load(file, allow_pickle=False).ravel().tolist()
        elif file.suffix == ".json":
            values = json.loads(file.read_text(encoding="utf-8"))
        else:
            values = [int(line) for line in file.read_text(encoding="utf-8").split()]
    except (OSError, ValueError) as error:
        raise ConfigError("head_ids", str(file), f"cannot be read as a list of ids: {error}") from error
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ConfigError("head_ids", str(file), "must hold one list of integers")
    return values
