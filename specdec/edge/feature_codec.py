"""Hidden states in messages: checked for number, size and place; what is in a row is the drafter's to read."""

from __future__ import annotations

from typing import Any

import numpy as np

from protos import draft_pb2, target_pb2
from specdec.core.acceptance import follow
from specdec.core.draft import Draft
from specdec.core.errors import InvalidArgument
from specdec.core.features import FEATURE_WINDOW, FeatureRows, VerifiedFeatures
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.codec import U32, replica_fault
from specdec.edge.messages import VerifyRequest

MAX_ROWS = 1024  # of one request: what several cycles have accepted


def encode_request_features(features: FeatureRows | None) -> dict[str, Any]:
    """Fields of a DraftRequest."""
    if features is None or not features.rows:
        return {}
    return {"features": features.data, "feature_rows": features.rows, "feature_offset": features.offset}


def decode_request_features(message: draft_pb2.DraftRequest) -> FeatureRows | None:
    """Raises InvalidArgument. The target never saw the last token of a context: there are hidden states of those before
    it at most."""
    data, rows, offset = message.features, message.feature_rows, message.feature_offset
    if not rows and not data:
        return None
    if not 1 <= rows <= MAX_ROWS:
        raise InvalidArgument("feature_rows", rows, f"must be from 1 to {MAX_ROWS}")
    if not data or len(data) % rows:
        raise InvalidArgument("features", f"{len(data)} bytes", f"must be {rows} rows of one size")
    seen = message.offset + len(message.token_ids) // U32.itemsize - 1
    if offset + rows > seen:
        raise InvalidArgument("feature_offset", offset, f"{rows} rows go beyond the {max(seen, 0)} positions there are")
    return FeatureRows(offset, rows, data)


def add_features(message: target_pb2.Verification, features: VerifiedFeatures) -> None:
    message.features = features.rows.data
    message.feature_rows = features.rows.rows
    message.context_feature_rows = features.context_rows


def decode_verified_features(
    message: target_pb2.Verification, request: VerifyRequest, verification: Verification, row_bytes: int
) -> VerifiedFeatures | None:
    """`verification`: the same message, decoded; row_bytes: of the rows that the session wants, 0: it wants none.
    Raises ReplicaFault."""
    rows, context = message.feature_rows, message.context_feature_rows
    if not row_bytes:
        if rows or message.features:
            raise replica_fault("feature_rows", rows, "none were asked for")
        return None
    nodes = request.tree.num_nodes
    if request.form is VerifyForm.Y:
        nodes = 1 + len(follow(Draft(request.tree), verification, np.empty(0)).nodes)
    if rows != context + nodes:
        raise replica_fault("feature_rows", rows, f"must be {context} of the context and {nodes} of nodes")
    root = request.offset + len(request.token_ids) - 1
    if context > min(root, FEATURE_WINDOW):
        raise replica_fault("context_feature_rows", context, f"at most {min(root, FEATURE_WINDOW)}")
    if len(message.features) != rows * row_bytes:
        raise replica_fault("features", f"{len(message.features)} bytes", f"must be {rows} rows of {row_bytes}")
    return VerifiedFeatures(FeatureRows(root - context, rows, message.features), context)
