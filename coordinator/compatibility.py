"""Which replicas can work with us: the same protocol, the right role, the same token ids, hidden states that exist."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from coordinator.tokenizer import TextCodec
from specdec.edge.messages import PROTOCOL_VERSION, DrafterInfo, ReplicaInfo

Check = Callable[[ReplicaInfo], str | None]
Narrow = Callable[[ReplicaInfo], ReplicaInfo]

log = logging.getLogger(__name__)


def misfit(drafter: DrafterInfo, target: ReplicaInfo) -> str | None:
    """Why a drafter cannot draft for a target, naming both sides; None if it can."""
    made_for, layers = drafter.target_base_fingerprint, drafter.feature_layers
    if made_for and made_for != target.base_fingerprint:
        return f"it was trained for target {made_for}, {target.model_name} is {target.base_fingerprint or 'unnamed'}"
    if layers and drafter.feature_size not in (0, target.hidden_size):
        return f"it reads hidden states of width {drafter.feature_size}, {target.model_name} has {target.hidden_size}"
    if layers and layers[-1] > target.num_layers:
        return f"it reads layers {list(layers)}, {target.model_name} has {target.num_layers}"
    return None


def fitting(targets: Callable[[], Sequence[ReplicaInfo]]) -> Narrow:
    """A function from a draft replica's Info to the same with those drafters only that some target fits; while no
    target is known, with all. What is left out is logged once."""
    told: set[tuple[str, str, str]] = set()

    def narrow(info: ReplicaInfo) -> ReplicaInfo:
        known = targets()
        reasons = {name: _misfits(info.drafter_info(name), known) for name in info.drafters}
        for name, reason in reasons.items():
            if reason and (info.replica_id, name, reason) not in told:
                told.add((info.replica_id, name, reason))
                log.error("drafter %s of %s excluded: %s", name, info.replica_id, reason)
        kept = tuple(name for name in info.drafters if not reasons[name])
        infos = tuple(drafter for drafter in info.drafter_infos if drafter.name in kept)
        return replace(info, drafters=kept, drafter_infos=infos)

    return narrow


def _misfits(drafter: DrafterInfo, targets: Sequence[ReplicaInfo]) -> str:
    reasons = [misfit(drafter, target) for target in targets]
    return "" if None in reasons else "; ".join(dict.fromkeys(filter(None, reasons)))


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
            return "drafters: it serves none for our targets"
        return None

    return check
