"""Which replicas can work with us: the same protocol, the right role, the same token ids."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.tokenizer import TextCodec
from specdec.edge.messages import PROTOCOL_VERSION, ReplicaInfo

Check = Callable[[ReplicaInfo], str | None]


def check_for(role: str, codec: TextCodec) -> Check:
    """A function from a replica's Info to "what: sentence naming both sides", or None if it fits.

    Widths of embeddings differ within a family of models (padding), so tokenizers are compared, never matrices. A
    replica without a tokenizer of its own (an n-gram drafter) names none and fits any."""

    def check(info: ReplicaInfo) -> str | None:
        if info.protocol_version != PROTOCOL_VERSION:
            return f"protocol: it speaks version {info.protocol_version}, we speak {PROTOCOL_VERSION}"
        if info.role != role:
            return f"role: it is a {info.role!r} replica in the {role!r} pool"
        unnamed = role == "draft" and not info.tokenizer_hash
        if not unnamed and info.tokenizer_hash != codec.tokenizer_hash:
            return f"tokenizer: its hash is {info.tokenizer_hash or 'empty'}, ours {codec.tokenizer_hash}"
        if info.vocab_size and info.vocab_size != codec.vocab_size:
            return f"vocabulary: it has {info.vocab_size} tokens, we have {codec.vocab_size}"
        if role == "draft" and not info.drafters:
            return "drafters: it serves none"
        return None

    return check
