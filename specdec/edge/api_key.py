"""What coordinator and command line agree on about bearer keys."""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "specdec-"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
NAMES = "1 to 64 letters, digits, dots, dashes, underscores"


def new_key() -> str:
    """256 random bits, so that its plain hash tells nobody anything."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(key: str) -> bytes:
    """All that is kept of a key."""
    return hashlib.sha256(key.encode()).digest()
