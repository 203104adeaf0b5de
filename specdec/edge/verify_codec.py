"""Dataclasses <-> protos/target.proto."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protos import target_pb2
from specdec.core.errors import InvalidArgument
from specdec.core.tree import Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw, Verification, VerifyForm
from specdec.edge.codec import (
    F32,
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
    encode_array,
    encode_load,
    encode_open,
    encode_parents,
    encode_refusal,
    encode_supports,
    encode_timing,
    replica_fault,
    split,
)
from specdec.edge.feature_codec import add_features, decode_verified_features
from specdec.edge.messages import Refusal, StaleContext, VerifyReply, VerifyRequest

# p travels as float32 and comes from a float32 softmax over up to 256k entries.
_MASS_TOLERANCE = 1e-3

_FORMS = {
    VerifyForm.Y: target_pb2.VERIFY_FORM_Y,
    VerifyForm.PQ: target_pb2.VERIFY_FORM_PQ,
    VerifyForm.TYPICAL: target_pb2.VERIFY_FORM_TYPICAL,
}
_ASKED = {wire: form for form, wire in _FORMS.items()}


def encode_verify_request(request: VerifyRequest) -> target_pb2.VerifyRequest:
    sizes, ids = encode_supports(request.supports)
    return target_pb2.VerifyRequest(
        open=None if request.open is None else encode_open(request.open),
        cycle=request.cycle,
        offset=request.offset,
        token_ids=encode_array(request.token_ids, U32),
        draft_token_ids=encode_array(request.tree.token_ids, U32),
        draft_parents=encode_parents(request.tree),
        form=_FORMS[request.form],
        support_sizes=sizes,
        support_ids=ids,
        want_child_p=request.want_child_p,
        budget_us=request.budget_us,
        traceparent=request.traceparent,
    )


def decode_verify_request(message: target_pb2.VerifyRequest, *, vocab_size: int, max_nodes: int) -> VerifyRequest:
    """Raises InvalidArgument."""
    form = _ASKED.get(message.form)
    if form is None:
        raise InvalidArgument("form", message.form, "must be Y, PQ or TYPICAL")
    tree = decode_tree(message.draft_token_ids, message.draft_parents, InvalidArgument, vocab_size=vocab_size)
    if tree.num_draft_tokens > max_nodes:
        raise InvalidArgument("draft_token_ids", tree.num_draft_tokens, f"at most {max_nodes} draft tokens")
    supports: tuple[Ids, ...] = ()
    if form is VerifyForm.PQ:
        supports = decode_supports(message.support_sizes, message.support_ids, tree, InvalidArgument)
    elif message.support_sizes:
        raise InvalidArgument("support_sizes", len(message.support_sizes), f"form {form.name} takes no supports")
    return VerifyRequest(
        cycle=message.cycle,
        offset=message.offset,
        token_ids=decode_ids(message.token_ids, "token_ids", InvalidArgument, vocab_size=vocab_size),
        tree=tree,
        form=form,
        supports=supports,
        want_child_p=message.want_child_p,
        budget_us=message.budget_us,
        traceparent=message.traceparent,
        open=decode_open(message.open) if message.HasField("open") else None,
    )


def encode_verification(verification: Verification) -> target_pb2.Verification:
    message = target_pb2.Verification(drawn=encode_array(verification.drawn, U32))
    if verification.laws:
        message.support_p = _concatenate([law.p for law in verification.laws])
        message.tails = np.array([law.tail for law in verification.laws], F32).tobytes()
    if verification.child_p is not None:
        message.child_p = encode_array(verification.child_p, F32)
    if verification.entropies is not None:
        message.entropies = encode_array(verification.entropies, F32)
    if (logprobs := verification.logprobs) is not None:
        message.drawn_logprobs = encode_array(logprobs.drawn, F32)
        message.support_logprobs = _concatenate(logprobs.support)
        message.top_ids = encode_array(logprobs.top_ids, U32)
        message.top_logprobs = encode_array(logprobs.top, F32)
    return message


def _concatenate(arrays: Sequence[NDArray[np.float32]]) -> bytes:
    return encode_array(np.concatenate(arrays), F32) if arrays else b""


def decode_verification(
    message: target_pb2.Verification, request: VerifyRequest, *, vocab_size: int, logprobs: int | None
) -> Verification:
    """`request`: what was asked; logprobs: SamplingParams.logprobs of the turn. Raises ReplicaFault for wrong
    shapes and for laws that are none: NaN, negative or missing mass, an outside sample that lies inside."""
    tree, form = request.tree, request.form
    drawn: Ids = decode_array(message.drawn, U32, "drawn", replica_fault, length=tree.num_nodes)
    inside = drawn < vocab_size
    laws: tuple[TargetLaw, ...] = ()
    if form is VerifyForm.PQ and request.supports:
        laws = _decode_laws(message, request, drawn)
        inner = np.array(tree.inner_nodes)
        inside[inner] |= drawn[inner] == NO_OUTSIDE
    if not inside.all():
        raise replica_fault("drawn", int(drawn.max()), f"must be below the vocabulary size {vocab_size}")
    child_p = None
    if form is VerifyForm.TYPICAL or (form is VerifyForm.Y and request.want_child_p):
        child_p = decode_array(message.child_p, F32, "child_p", replica_fault, length=tree.num_draft_tokens)
        _check_probabilities(child_p, "child_p")
    raw = None if logprobs is None else _decode_logprobs(message, request, logprobs)
    entropies = None
    if form is VerifyForm.TYPICAL:
        entropies = decode_array(message.entropies, F32, "entropies", replica_fault, length=tree.num_nodes)
        if not ((entropies >= 0) & np.isfinite(entropies)).all():
            raise replica_fault("entropies", entropies.tolist(), "must be finite and not negative")
    return Verification(form, drawn, laws, child_p, raw, entropies)


def _decode_laws(message: target_pb2.Verification, request: VerifyRequest, drawn: Ids) -> tuple[TargetLaw, ...]:
    sizes = bytes(map(len, request.supports))
    p = decode_array(message.support_p, F32, "support_p", replica_fault, length=sum(sizes))
    tails = decode_array(message.tails, F32, "tails", replica_fault, length=len(sizes))
    _check_probabilities(p, "support_p")
    _check_probabilities(tails, "tails")
    counts = np.frombuffer(sizes, U8).astype(np.int64)
    mass = np.add.reduceat(p, np.cumsum(counts) - counts, dtype=np.float64) + tails
    if (abs(mass - 1.0) > _MASS_TOLERANCE).any():
        raise replica_fault("support_p", mass.tolist(), "p on the support and its tail must sum to 1")
    outside = drawn[np.array(request.tree.inner_nodes)]
    if ((outside == NO_OUTSIDE) & (tails > 0)).any():
        raise replica_fault("drawn", NO_OUTSIDE, "a law with mass outside its support needs an outside sample")
    if (np.repeat(outside, counts) == np.concatenate(request.supports)).any():
        raise replica_fault("drawn", outside.tolist(), "an outside sample lies inside the support")
    return tuple(
        TargetLaw(ids, part, tail)
        for ids, part, tail in zip(request.supports, split(p, sizes), tails.tolist(), strict=True)
    )


def _check_probabilities(values: NDArray[np.float32], field: str) -> None:
    # NaN fails both comparisons.
    if not ((values >= 0) & (values <= 1 + _MASS_TOLERANCE)).all():
        raise replica_fault(field, values.tolist(), "must be probabilities")


def _decode_logprobs(message: target_pb2.Verification, request: VerifyRequest, top: int) -> Logprobs:
    nodes = request.tree.num_nodes
    sizes = bytes(map(len, request.supports))

    def decode(data: bytes, field: str, length: int) -> NDArray[np.float32]:
        values = decode_array(data, F32, field, replica_fault, length=length)
        if not (values <= _MASS_TOLERANCE).all():
            raise replica_fault(field, values.tolist(), "must be log-probabilities")
        return values

    top_ids = decode_array(message.top_ids, U32, "top_ids", replica_fault, length=nodes * top)
    return Logprobs(
        decode(message.drawn_logprobs, "drawn_logprobs", nodes),
        split(decode(message.support_logprobs, "support_logprobs", sum(sizes)), sizes),
        top_ids.reshape(nodes, top),
        decode(message.top_logprobs, "top_logprobs", nodes * top).reshape(nodes, top),
    )


def encode_verify_reply(reply: VerifyReply) -> target_pb2.VerifyResponse:
    message = target_pb2.VerifyResponse(
        cycle=reply.cycle, timing=encode_timing(reply.timing), load=encode_load(reply.load)
    )
    match reply.result:
        case Verification() as verification:
            message.verification.CopyFrom(encode_verification(verification))
            if reply.features is not None:
                add_features(message.verification, reply.features)
        case StaleContext(held):
            message.stale.held = held
        case Refusal() as refusal:
            message.refusal.CopyFrom(encode_refusal(refusal))
    return message


def decode_verify_reply(
    message: target_pb2.VerifyResponse,
    request: VerifyRequest,
    *,
    vocab_size: int,
    logprobs: int | None,
    feature_bytes: int = 0,
) -> VerifyReply:
    """`request`: what was asked; feature_bytes: of one row of the hidden states that the session wants, 0: it wants
    none. Raises ReplicaFault."""
    result: Verification | StaleContext | Refusal
    features = None
    match message.WhichOneof("result"):
        case "stale":
            result = decode_stale(message.stale)
        case "refusal":
            result = decode_refusal(message.refusal)
        case "verification":
            result = decode_verification(message.verification, request, vocab_size=vocab_size, logprobs=logprobs)
            features = decode_verified_features(message.verification, request, result, feature_bytes)
        case _:
            raise replica_fault("result", None, "a reply must carry laws, a refusal or a stale context")
    return VerifyReply(message.cycle, result, decode_timing(message.timing), decode_load(message.load), features)
