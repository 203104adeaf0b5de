"""Dataclasses <-> protos/common.proto, and the arrays that all messages are made of. Vectors are
little-endian bytes; whatever is decoded is copied, owned and checked. A `Fault` makes the error:
InvalidArgument for requests, `replica_fault` or `draft_fault` for replies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import common_pb2
from specdec.core.errors import DraftFault, InvalidArgument, ReplicaFault, SpecdecError
from specdec.core.sampling import MAX_LOGPROBS, SamplingParams
from specdec.core.tree import EMPTY_TREE, DraftTree, Ids
from specdec.edge.messages import (
    PROTOCOL_VERSION,
    Load,
    OpenSession,
    Refusal,
    StaleContext,
    Timing,
)

Fault = Callable[[str, object, str], SpecdecError]
MAX_SALT = 32  # bytes
MAX_SUPPORT = 255  # a support's size travels as one byte

U8, U32, F16, F32 = (np.dtype(code) for code in ("u1", "<u4", "<f2", "<f4"))


def replica_fault(field: str, value: object, problem: str) -> ReplicaFault:
    return ReplicaFault(f"{field} = {value!r}: {problem}")


def draft_fault(field: str, value: object, problem: str) -> DraftFault:
    return DraftFault(f"{field} = {value!r}: {problem}")


def encode_array(values: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return np.asarray(values, dtype).tobytes()


def decode_array(
    data: bytes, dtype: np.dtype[Any], field: str, fault: Fault, *, length: int | None = None
) -> NDArray[Any]:
    """length: how many items there must be; None: any number."""
    count, rest = divmod(len(data), dtype.itemsize)
    if rest or (length is not None and count != length):
        expected = "whole items" if length is None else f"{length * dtype.itemsize} bytes"
        raise fault(field, f"{len(data)} bytes", f"must be {expected} of {dtype.itemsize}")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))


def decode_ids(data: bytes, field: str, fault: Fault, *, vocab_size: int, length: int | None = None) -> Ids:
    """uint32[n], every id below vocab_size."""
    ids: Ids = decode_array(data, U32, field, fault, length=length)
    if ids.size and (top := int(ids.max())) >= vocab_size:
        raise fault(field, top, f"must be below the vocabulary size {vocab_size}")
    return ids


def encode_parents(tree: DraftTree) -> bytes:
    """One byte per draft token; nothing for a chain."""
    return b"" if tree.is_chain else encode_array(tree.parents, U8)


def decode_tree(token_ids: bytes, parents: bytes, fault: Fault, *, vocab_size: int) -> DraftTree:
    if not token_ids and not parents:
        return EMPTY_TREE
    ids = decode_ids(token_ids, "draft_token_ids", fault, vocab_size=vocab_size)
    try:
        if not parents:
            return DraftTree.chain(ids)
        return DraftTree(ids, np.frombuffer(parents, U8).astype(np.int64))
    except DraftFault as error:
        raise fault("draft_parents", list(parents), str(error)) from None


def encode_supports(supports: Sequence[Ids]) -> tuple[bytes, bytes]:
    """(sizes, ids concatenated)"""
    if not supports:
        return b"", b""
    return bytes(map(len, supports)), encode_array(np.concatenate(supports), U32)


def decode_supports(sizes: bytes, data: bytes, tree: DraftTree, fault: Fault) -> tuple[Ids, ...]:
    """One array of distinct ids per inner node. Ids beyond the vocabulary are lawful: the target gives them p
    = 0."""
    if len(sizes) != len(tree.inner_nodes):
        raise fault("support_sizes", len(sizes), f"must be one per node with children: {len(tree.inner_nodes)}")
    if not sizes:
        return ()
    if 0 in sizes:
        raise fault("support_sizes", list(sizes), "must be positive")
    ids = decode_array(data, U32, "support_ids", fault, length=sum(sizes))
    supports = split(ids, sizes)
    for support in supports:
        if len(set(support.tolist())) != len(support):
            raise fault("support_ids", support.tolist(), "must be distinct within a node")
    return supports


def split(values: NDArray[Any], sizes: bytes) -> tuple[NDArray[Any], ...]:
    """Views of consecutive runs."""
    out, start = [], 0
    for size in sizes:
        out.append(values[start : start + size])
        start += size
    return tuple(out)


def encode_params(params: SamplingParams) -> common_pb2.SamplingParams:
    message = common_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        end_ids=params.end_ids,
        logprobs=params.logprobs,
    )
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        message.logit_bias_ids = encode_array(np.array(ids), U32)
        message.logit_biases = encode_array(np.array(biases), F32)
    return message


def decode_params(message: common_pb2.SamplingParams) -> SamplingParams:
    """Raises InvalidArgument for what no coordinator of ours sends: these are effective values already."""
    ids = decode_array(message.logit_bias_ids, U32, "logit_bias_ids", InvalidArgument)
    biases = decode_array(message.logit_biases, F32, "logit_biases", InvalidArgument, length=len(ids))
    if np.isnan(biases).any():
        raise InvalidArgument("logit_biases", math.nan, "must be numbers")
    for field, low, high in _RANGES:
        if not low <= (value := getattr(message, field)) <= high:
            raise InvalidArgument(field, value, f"must be from {low} to {high}")
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple(zip(ids.tolist(), biases.tolist(), strict=True)),
        min_tokens=message.min_tokens,
        end_ids=tuple(message.end_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )


_LARGE = 1e30
_RANGES = (
    ("temperature", 0.0, _LARGE),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1 / _LARGE, _LARGE),
    ("presence_penalty", -_LARGE, _LARGE),
    ("frequency_penalty", -_LARGE, _LARGE),
    ("logprobs", 0, MAX_LOGPROBS),
)


def encode_open(session: OpenSession) -> common_pb2.OpenSession:
    return common_pb2.OpenSession(
        protocol_version=session.protocol_version,
        session_id=session.session_id,
        params=encode_params(session.params),
        seed=session.seed,
        turn_start=session.turn_start,
        drafter=session.drafter,
        feature_layers=session.feature_layers,
        cache_salt=session.cache_salt,
    )


def decode_open(message: common_pb2.OpenSession) -> OpenSession:
    if message.protocol_version != PROTOCOL_VERSION:
        remedy = f"this replica speaks {PROTOCOL_VERSION}"
        raise InvalidArgument("protocol_version", message.protocol_version, remedy)
    if len(message.cache_salt) > MAX_SALT:
        raise InvalidArgument("cache_salt", f"{len(message.cache_salt)} bytes", f"at most {MAX_SALT}")
    return OpenSession(
        message.session_id,
        decode_params(message.params),
        message.seed,
        message.turn_start,
        message.drafter,
        decode_layers(message.feature_layers, "open.feature_layers", InvalidArgument),
        message.cache_salt,
    )


def decode_layers(layers: Sequence[int], field: str, fault: Fault) -> tuple[int, ...]:
    """Numbers of decoder layers, ascending."""
    if any(a >= b for a, b in itertools.pairwise(layers)):
        raise fault(field, list(layers), "must ascend")
    return tuple(layers)


def encode_timing(timing: Timing) -> common_pb2.Timing:
    return common_pb2.Timing(
        queue_us=timing.queue_us,
        compute_us=timing.compute_us,
        batch_size=timing.batch_size,
        computed_tokens=timing.computed_tokens,
        batch_rows=timing.batch_rows,
    )


def decode_timing(message: common_pb2.Timing) -> Timing:
    return Timing(message.queue_us, message.compute_us, message.batch_size, message.computed_tokens, message.batch_rows)


def encode_load(load: Load) -> common_pb2.Load:
    return common_pb2.Load(
        queued=load.queued,
        running=load.running,
        kv_free=load.kv_free,
        kv_total=load.kv_total,
        draining=load.draining,
    )


def decode_load(message: common_pb2.Load) -> Load:
    return Load(message.queued, message.running, message.kv_free, message.kv_total, message.draining)


def encode_refusal(refusal: Refusal) -> common_pb2.Refusal:
    return common_pb2.Refusal(reason=refusal.reason, message=refusal.message, field=refusal.field)


def decode_refusal(message: common_pb2.Refusal) -> Refusal:
    return Refusal(message.reason, message.message, message.field)


def decode_stale(message: common_pb2.StaleContext) -> StaleContext:
    return StaleContext(message.held)
