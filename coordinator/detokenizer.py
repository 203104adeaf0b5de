"""Text of committed token ids, as they come."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from coordinator.token_pieces import TokenPieces
from specdec.core.tree import Ids

_LONGEST_INCOMPLETE = 3  # bytes of a UTF-8 character that is not whole yet


class OutputText:
    """The text of one choice: decode(context + output) behind decode(context), leading spaces included.
    Always whole characters; bytes of an incomplete one wait for the tokens that complete it, or for `finish`.
    A function of the ids alone, however they are cut into blocks; constant time per token.

    context_ids: the ids before the output's first (they decide about a leading space, and may end amid a
    character: that character belongs to the context)."""

    def __init__(self, pieces: TokenPieces, context_ids: Sequence[int] | Ids) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        context = _last_bytes(pieces, context_ids)
        self._at_start = context is None
        self._decoder.decode(context or b"")
        self._foreign = 1 if self._decoder.getstate()[0] else 0

    def push(self, token_ids: Sequence[int]) -> list[str]:
        """The text that each token releases."""
        return [self._push_one(token_id) for token_id in token_ids]

    def finish(self) -> str:
        """U+FFFD where the output ends amid a character, else nothing."""
        return self._own(self._decoder.decode(b"", True))

    def _push_one(self, token_id: int) -> str:
        if self._pieces.silent(token_id):
            return ""
        piece = self._pieces.first(token_id) if self._at_start else self._pieces.piece(token_id)
        self._at_start = False
        return self._own(self._decoder.decode(piece))

    def _own(self, text: str) -> str:
        if not (self._foreign and text):
            return text
        self._foreign = 0
        return text[1:]


def _last_bytes(pieces: TokenPieces, token_ids: Sequence[int] | Ids) -> bytes | None:
    """The end of the context's text, long enough to see an incomplete character; None for a context without
    text."""
    found: bytes | None = None
    for token_id in reversed(token_ids):
        if not pieces.silent(int(token_id)):
            found = pieces.piece(int(token_id)) + (found or b"")
            if len(found) >= _LONGEST_INCOMPLETE:
                break
    return found
