"""The bytes that each token adds to a text. A text is the UTF-8 of its tokens' pieces joined; so it can be
streamed token by token in constant time, and never depends on where blocks are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tokenizers import Tokenizer

from specdec.core.errors import ConfigError

_PROBE = "Hello,  wörld! It's 你好 🙂\n\tx (y) <z>"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenPieces:
    """Byte-level and byte-fallback tokens stand for bytes; every other token is decoded once, behind an
    ordinary token, and remembered. Special tokens and ids without a token are silent.

    Equal to the tokenizer's own decode (special tokens skipped) on everything that is valid UTF-8. On invalid
    bytes there is one U+FFFD per maximal invalid part, as byte-level tokenizers have it; byte-fallback
    decoders would turn the whole run of bytes around them into U+FFFD, which a stream cannot take back.

    Raises ConfigError for a tokenizer whose text is not made of such pieces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = json.dumps(json.loads(tokenizer.to_str())["decoder"])
        self._byte_level = '"ByteLevel"' in decoder
        self._byte_fallback = '"ByteFallback"' in decoder
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._anchor = self._find_anchor()
        self._pieces: dict[int, bytes] = {}
        self._check()

    def silent(self, token_id: int) -> bool:
        """Whether decoding skips the token altogether."""
        return token_id in self._special or self._tokenizer.id_to_token(token_id) is None

    def piece(self, token_id: int) -> bytes:
        """What the token adds to a text that has begun."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = b"" if self.silent(token_id) else self._make(token_id)
        return piece

    def first(self, token_id: int) -> bytes:
        """What the token makes at the very start of a text, where some decoders drop a space."""
        piece = self.piece(token_id)
        if not piece.startswith(b" ") or self._byte_level:
            return piece
        return self._decode([token_id]).encode()

    def join(self, token_ids: Iterable[int]) -> bytes:
        """The bytes of a whole text."""
        ids = [i for i in token_ids if not self.silent(i)]
        return b"".join([self.first(i) for i in ids[:1]] + [self.piece(i) for i in ids[1:]])

    def _make(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        assert token is not None, f"id {token_id} has no token"
        if self._byte_level:
            values = [_BYTE_OF_CHAR.get(c) for c in token]
            return token.encode() if None in values else bytes(v for v in values if v is not None)
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return self._decode([self._anchor, token_id])[len(self._decode([self._anchor])) :].encode()

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def _find_anchor(self) -> int:
        for token_id in sorted(self._tokenizer.get_vocab(with_added_tokens=False).values()):
            if not self.silent(token_id) and self._decode([token_id])[-1:].isalnum():
                return int(token_id)
        raise ConfigError("tokenizer", "vocabulary", "holds no token with a letter or digit")

    def _check(self) -> None:
        ids = self._tokenizer.encode(_PROBE, add_special_tokens=False).ids
        mine, theirs = self.join(ids).decode("utf-8", "replace"), self._decode(ids)
        if mine != theirs:
            raise ConfigError(
                "tokenizer",
                theirs,
                f"cannot be streamed: its tokens do not decode one by one (they give {mine!r})",
            )


def _byte_of_char() -> dict[str, int]:
    """The alphabet of byte-level vocabularies: printable Latin-1 characters stand for themselves, the other
    bytes, in order, for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
