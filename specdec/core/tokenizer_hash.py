"""What two tokenizers must share for their token ids to mean the same: one hash, formed alike by coordinator,
drafters and verifiers from a `tokenizer.json`.

The rule. Hashed are the kind of model, which string each id stands for (vocabulary and added tokens together,
so it does not matter which of the two lists a token is in), and the merges or piece scores, because they
decide how text becomes ids. Left out are

* flags, normaliser, pre-tokenizer, decoder, post-processor and chat template: a draft and a verify exchange
  ids only;
* reserved names, such as `<|reserved_special_token_7|>`, `<unused12>` or `[unused3]`: ids without a meaning.
  A token that was given a meaning (another name) makes another tokenizer. How many reserved ids there are
  shows in `tokenizer_vocab_size`, which is compared on its own."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

RESERVED_NAME = re.compile(r"[<\[]\|?[a-z_]*(reserved|unused|dummy|placeholder)[a-z_]*\d+[a-z_]*\|?[>\]]", re.I)


def tokenizer_hash(tokenizer_json: str) -> str:
    """Hexadecimal SHA-256 of the id-defining part of a `tokenizer.json`, given as text (`Tokenizer.to_str()`
    gives the same). Raises ValueError where the text is not a tokenizer."""
    spec = _parse(tokenizer_json)
    model = spec["model"]
    tokens = sorted((i, token) for i, token in _tokens(spec).items() if not _reserved(token))
    identity = [model.get("type"), tokens, _merges(model), _scores(model)]
    return hashlib.sha256(json.dumps(identity, ensure_ascii=True).encode()).hexdigest()


def tokenizer_vocab_size(tokenizer_json: str) -> int:
    """The real vocabulary size: the largest id that stands for a string, plus one. A model's embedding may be
    wider (padding); both laws mask what lies beyond. Raises ValueError where the text is not a tokenizer."""
    return max(_tokens(_parse(tokenizer_json)), default=-1) + 1


def _parse(tokenizer_json: str) -> dict[str, Any]:
    spec = json.loads(tokenizer_json)
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict) or "vocab" not in spec["model"]:
        raise ValueError("not a tokenizer.json: it has no model with a vocabulary")
    return spec


def _tokens(spec: dict[str, Any]) -> dict[int, str]:
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, list):  # Unigram: pieces with scores, the index is the id
        tokens = {token_id: piece for token_id, (piece, _) in enumerate(vocab)}
    else:
        tokens = {token_id: token for token, token_id in vocab.items()}
    tokens.update((added["id"], added["content"]) for added in spec.get("added_tokens") or ())
    return tokens


def _merges(model: dict[str, Any]) -> list[list[str]]:
    """Merges in order, as pairs: older files write "a b" where newer ones write ["a", "b"]."""
    return [m.split(" ") if isinstance(m, str) else list(m) for m in model.get("merges") or ()]


def _scores(model: dict[str, Any]) -> list[float]:
    vocab = model["vocab"]
    return [score for piece, score in vocab if not _reserved(piece)] if isinstance(vocab, list) else []


def _reserved(token: str) -> bool:
    return RESERVED_NAME.fullmatch(token) is not None
