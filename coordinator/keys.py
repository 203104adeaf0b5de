"""Who may call: bearer keys, of which only hashes are kept.

A key file has one line per key, `#` begins a comment:

    name sha256:HEX [max_streams=N] [tokens_per_minute=N]

`specdec key NAME` makes a key and its line."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdec.core.errors import ConfigError, Unauthenticated
from specdec.edge.api_key import NAME, NAMES, hashed

_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_LIMITS = ("max_streams", "tokens_per_minute")


@dataclass(frozen=True, slots=True)
class Caller:
    """name: "" where no keys are asked for. Limits: None: none of its own."""

    name: str = ""
    max_streams: int | None = None
    tokens_per_minute: int | None = None

    @property
    def cache_salt(self) -> bytes:
        """Callers share no cached keys and values, nor texts to draft from: how fast a prompt is served tells nobody
        what another has asked."""
        return hashlib.blake2b(self.name.encode(), digest_size=16).digest() if self.name else b""


ANYONE = Caller()


class Keys:
    """by_hash: sha256 of each key. None: everyone is let in, as ANYONE."""

    def __init__(self, by_hash: Mapping[bytes, Caller] | None) -> None:
        self._by_hash = by_hash

    @classmethod
    def read(cls, file: str | None) -> Keys:
        """Raises ConfigError naming the line."""
        if file is None:
            return cls(None)
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("api_keys", file, f"cannot be read: {error}") from None
        by_hash: dict[bytes, Caller] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if words:
                digest, caller = _parsed(words, f"{file}, line {number}")
                if digest in by_hash or caller.name in {other.name for other in by_hash.values()}:
                    raise ConfigError("api_keys", f"{file}, line {number}", "this key or this name was there before")
                by_hash[digest] = caller
        if not by_hash:
            raise ConfigError("api_keys", file, "holds no key: nobody could call; leave it unset to let everyone in")
        return cls(by_hash)

    def caller(self, authorization: str | None) -> Caller:
        """authorization: "Bearer KEY". Compared with every key, in a time that tells nothing. Raises
        Unauthenticated."""
        if self._by_hash is None:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashed(key.strip())
        found = [caller for known, caller in self._by_hash.items() if hmac.compare_digest(known, digest)]
        if scheme.lower() != "bearer" or not found:
            raise Unauthenticated("this server wants a key it knows: send the metadata `authorization: Bearer KEY`")
        return found[0]


def _parsed(words: list[str], where: str) -> tuple[bytes, Caller]:
    name, *rest = words
    if not NAME.fullmatch(name):
        raise ConfigError("api_keys", where, f"{name!r} is no name: {NAMES}")
    digest = _HASH.fullmatch(rest[0]) if rest else None
    if digest is None:
        raise ConfigError("api_keys", where, "wants: name sha256:HEX, as `specdec key NAME` prints it")
    limits: dict[str, int] = {}
    for word in rest[1:]:
        option, _, value = word.partition("=")
        if option not in _LIMITS or not value.isdecimal() or int(value) < 1:
            raise ConfigError("api_keys", where, f"{word!r} is neither of {', '.join(f'{o}=N' for o in _LIMITS)}")
        limits[option] = int(value)
    return bytes.fromhex(digest[1]), Caller(name, **limits)
