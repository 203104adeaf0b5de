"""Dataclasses <-> protos/draft.proto."""

from __future__ import annotations

import math

import numpy as np

from protos import draft_pb2
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import InvalidArgument
from specdec.core.tree import MAX_NODES, DraftTree, Ids
from specdec.edge.codec import (
    F16,
    MAX_SUPPORT,
    U8,
    U32,
    decode_array,
    decode_ids,
    decode_load,
    decode_open,
    decode_refusal,
    decode_stale,
    decode_supports,
    decode_timing,
    decode_tree,
    draft_fault,
    encode_array,
    encode_load,
    encode_open,
    encode_parents,
    encode_refusal,
    encode_supports,
    encode_timing,
    split,
)
from specdec.edge.feature_codec import decode_request_features, encode_request_features
from specdec.edge.messages import DraftReply, DraftRequest, Refusal, StaleContext

_MODES = {DraftKind.CHOSEN: draft_pb2.DRAFT_MODE_CHOSEN, DraftKind.SAMPLED: draft_pb2.DRAFT_MODE_SAMPLED}
_ASKED = {mode: kind for kind, mode in _MODES.items()}
_KINDS = {
    DraftKind.CHOSEN: draft_pb2.DRAFT_KIND_CHOSEN,
    DraftKind.SAMPLED: draft_pb2.DRAFT_KIND_SAMPLED,
    DraftKind.SAMPLED_WITHOUT_REPLACEMENT: draft_pb2.DRAFT_KIND_SAMPLED_WITHOUT_REPLACEMENT,
}
_GIVEN = {wire: kind for kind, wire in _KINDS.items()}


def encode_draft_request(request: DraftRequest) -> draft_pb2.DraftRequest:
    return draft_pb2.DraftRequest(
        open=None if request.open is None else encode_open(request.open),
        cycle=request.cycle,
        offset=request.offset,
        token_ids=encode_array(request.token_ids, U32),
        num_draft_tokens=request.num_draft_tokens,
        mode=_MODES[request.kind],
        support=request.support,
        budget_us=request.budget_us,
        traceparent=request.traceparent,
        **encode_request_features(request.features),
    )


def decode_draft_request(message: draft_pb2.DraftRequest, *, vocab_size: int) -> DraftRequest:
    """Raises InvalidArgument."""
    if message.mode not in _ASKED:
        raise InvalidArgument("mode", message.mode, "must be CHOSEN or SAMPLED")
    if not 1 <= message.num_draft_tokens <= MAX_NODES:
        raise InvalidArgument("num_draft_tokens", message.num_draft_tokens, f"must be from 1 to {MAX_NODES}")
    kind = _ASKED[message.mode]
    if kind is DraftKind.SAMPLED and not 1 <= message.support <= MAX_SUPPORT:
        raise InvalidArgument("support", message.support, f"must be from 1 to {MAX_SUPPORT}")
    return DraftRequest(
        cycle=message.cycle,
        offset=message.offset,
        token_ids=decode_ids(message.token_ids, "token_ids", InvalidArgument, vocab_size=vocab_size),
        num_draft_tokens=message.num_draft_tokens,
        kind=kind,
        support=message.support,
        budget_us=message.budget_us,
        traceparent=message.traceparent,
        open=decode_open(message.open) if message.HasField("open") else None,
        features=decode_request_features(message),
    )


def encode_draft(draft: Draft) -> draft_pb2.Draft:
    message = draft_pb2.Draft(
        kind=_KINDS[draft.kind],
        token_ids=encode_array(draft.tree.token_ids, U32),
        parents=encode_parents(draft.tree),
        drafter=draft.drafter,
        score=draft.score,
        coupled=draft.coupled,
    )
    if draft.laws:
        message.support_sizes, message.support_ids = encode_supports([law.ids for law in draft.laws])
        message.support_q = encode_array(np.concatenate([law.weights for law in draft.laws]), F16)
    return message


def decode_draft(message: draft_pb2.Draft, *, vocab_size: int) -> Draft:
    """Raises DraftFault for a draft that must not be judged. Whether its tokens were drawn from its laws is
    for the coordinator to check, which has the keys."""
    kind = _GIVEN.get(message.kind)
    if kind is None:
        raise draft_fault("kind", message.kind, "is none that we know")
    if not math.isfinite(message.score):
        raise draft_fault("score", message.score, "must be finite")
    tree = decode_tree(message.token_ids, message.parents, draft_fault, vocab_size=vocab_size)
    laws: tuple[DraftLaw, ...] = ()
    if kind is not DraftKind.CHOSEN:
        laws = _decode_laws(message, tree)
    elif message.support_sizes or message.support_ids or message.support_q:
        raise draft_fault("support_sizes", len(message.support_sizes), "a chosen draft has no laws")
    return Draft(tree, kind, laws, message.drafter, message.score, message.coupled)


def _decode_laws(message: draft_pb2.Draft, tree: DraftTree) -> tuple[DraftLaw, ...]:
    sizes = message.support_sizes
    supports = decode_supports(sizes, message.support_ids, tree, draft_fault)
    weights = decode_array(message.support_q, F16, "support_q", draft_fault, length=sum(sizes))
    if not sizes:
        return ()
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise draft_fault("support_q", "a weight", "must be finite and not negative")
    starts = np.cumsum(np.frombuffer(sizes, U8), dtype=np.int64) - np.frombuffer(sizes, U8)
    if not np.add.reduceat(weights, starts, dtype=np.float64).all():
        raise draft_fault("support_q", "a law", "must have mass")
    _check_tokens(tree, supports)
    return tuple(DraftLaw(ids, w) for ids, w in zip(supports, split(weights, sizes), strict=True))


def _check_tokens(tree: DraftTree, supports: tuple[Ids, ...]) -> None:
    """Every draft token lies in its parent's support."""
    tokens = tree.token_ids.tolist()
    for node, support in zip(tree.inner_nodes, supports, strict=True):
        ids = support.tolist()
        for child in tree.children[node]:
            if tokens[child - 1] not in ids:
                raise draft_fault("token_ids", tokens[child - 1], "lies outside its law's support")


def encode_draft_reply(reply: DraftReply) -> draft_pb2.DraftResponse:
    message = draft_pb2.DraftResponse(
        cycle=reply.cycle, timing=encode_timing(reply.timing), load=encode_load(reply.load)
    )
    match reply.result:
        case Draft() as draft:
            message.draft.CopyFrom(encode_draft(draft))
        case StaleContext(held):
            message.stale.held = held
        case Refusal() as refusal:
            message.refusal.CopyFrom(encode_refusal(refusal))
    return message


def decode_draft_reply(message: draft_pb2.DraftResponse, request: DraftRequest, *, vocab_size: int) -> DraftReply:
    """`request`: what was asked. Raises DraftFault."""
    return DraftReply(
        message.cycle,
        _decode_result(message, request, vocab_size),
        decode_timing(message.timing),
        decode_load(message.load),
    )


def _decode_result(
    message: draft_pb2.DraftResponse, request: DraftRequest, vocab_size: int
) -> Draft | StaleContext | Refusal:
    match message.WhichOneof("result"):
        case "stale":
            return decode_stale(message.stale)
        case "refusal":
            return decode_refusal(message.refusal)
        case "draft":
            draft = decode_draft(message.draft, vocab_size=vocab_size)
        case _:
            raise draft_fault("result", None, "a reply must carry a draft, a refusal or a stale context")
    asked = request.num_draft_tokens
    if draft.tree.num_draft_tokens > asked:
        raise draft_fault("token_ids", draft.tree.num_draft_tokens, f"at most {asked} were asked for")
    if request.kind is DraftKind.CHOSEN and draft.kind is not DraftKind.CHOSEN:
        raise draft_fault("kind", draft.kind.name, "a chosen draft was asked for")
    return draft
