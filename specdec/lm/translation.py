"""Contexts of one tokenizer told to a model of another (Timor et al. 2025, "Accelerating LLM inference with lossless
speculative decoding for heterogeneous vocabularies", token-level intersection)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast
from transformers.utils.hub import cached_file

from specdec.core.errors import ConfigError
from specdec.core.tree import Ids
from specdec.lm.id_map import IdMap

_NO_IDS: Ids = np.zeros(0, dtype=np.uint32)
_NO_ENDS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)


class Translation:
    """Token by token, so that a prefix of a context becomes a prefix: a token that both have becomes its own id there,
    any other the drafter's tokens for its bytes; a token of which the drafter can say nothing is left out.

    shared: the tokens of both, equal as strings of bytes, that the drafter's head has."""

    def __init__(self, target: Any, drafter: Any, vocab_size: int, width: int) -> None:
        """target, drafter: byte-level tokenizers of the package tokenizers, as `read_tokenizer` gives them.
        vocab_size: of the target. width: of the drafter's embedding and head. Raises ConfigError where no token is
        shared."""
        self._target, self._drafter = target, drafter
        mine: dict[str, int] = target.get_vocab(with_added_tokens=True)
        theirs: dict[str, int] = drafter.get_vocab(with_added_tokens=True)
        both = ((mine[token], theirs[token]) for token in mine.keys() & theirs.keys())
        pairs = sorted((target_id, own_id) for target_id, own_id in both if target_id < vocab_size and own_id < width)
        if not pairs:
            raise ConfigError("tli", True, "the tokenizers of drafter and target have no token in common")
        target_ids, own_ids = np.array(pairs, dtype=np.uint32).T
        self.shared = IdMap(np.ascontiguousarray(target_ids), np.ascontiguousarray(own_ids))
        self._special = {i: token.content for i, token in target.get_added_tokens_decoder().items()}
        self._known: dict[int, tuple[int, ...]] = {target_id: (own_id,) for target_id, own_id in pairs}
        self._width = width

    def token(self, token_id: int) -> tuple[int, ...]:
        """The drafter's ids for one token of the target."""
        own = self._known.get(token_id)
        if own is None:
            own = self._known[token_id] = tuple(i for i in self._spelled(token_id) if i < self._width)
        return own

    def _spelled(self, token_id: int) -> list[int]:
        if token_id in self._special:
            ids: list[int] = self._drafter.encode(self._special[token_id], add_special_tokens=False).ids
            return ids
        letters = self._target.id_to_token(token_id)
        # Byte letters go past the pre-tokenizer, which would take them for text.
        return [] if letters is None else [token.id for token in self._drafter.model.tokenize(letters)]


class TranslatedContext:
    """One session's context in the drafter's ids, which grows and is cut with it."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._context = _NO_IDS
        self._ends = _NO_ENDS  # of each of its tokens, in the drafter's ids
        self._ids = _NO_IDS

    def update(self, context: Ids) -> Ids:
        """uint32[m]: `context`, uint32[n], in the drafter's ids. Only what differs from the last one is translated."""
        both = min(len(context), len(self._context))
        differing = np.flatnonzero(context[:both] != self._context[:both])
        kept = int(differing[0]) if len(differing) else both
        parts = [self._translation.token(token) for token in context[kept:].tolist()]
        held = int(self._ends[kept - 1]) if kept else 0
        new = np.array([i for part in parts for i in part], dtype=np.uint32)
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        self._ids = np.concatenate([self._ids[:held], new])
        self._ends = np.concatenate([self._ends[:kept], held + np.cumsum(lengths)])
        self._context = context
        return self._ids


def read_tokenizer(path: str) -> Any:
    """The byte-level tokenizer of a folder or hub name. Raises ConfigError where it has none or one of another kind,
    whose tokens are no strings of bytes."""
    file = cached_file(path, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    if file is None:
        raise ConfigError("tli", path, "has no tokenizer.json")
    spec = json.loads(Path(file).read_text(encoding="utf-8"))
    if '"ByteLevel"' not in json.dumps(spec.get("decoder")):
        raise ConfigError("tli", path, "its tokenizer is not byte-level: only such tokens can be compared")
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=file)  # type: ignore[no-untyped-call]
    return tokenizer.backend_tokenizer
