"""Hidden states on the wire: what is not so many rows of one size, at positions that exist, is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import draft_pb2, target_pb2
from specdec.core.errors import InvalidArgument, ReplicaFault
from specdec.core.features import FEATURE_WINDOW, FeatureRows, VerifiedFeatures
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.codec import decode_open, encode_open
from specdec.edge.draft_codec import decode_draft_request, encode_draft_request
from specdec.edge.feature_codec import MAX_ROWS
from specdec.edge.messages import DraftRequest, OpenSession, Refusal, VerifyReply, VerifyRequest
from specdec.edge.verify_codec import decode_verify_reply, encode_verify_reply
from tests.edge.messages import VOCAB

ROW = 12
CONTEXT = np.arange(10, dtype=np.uint32)
ASKED = DraftRequest(1, 90, CONTEXT, 4, features=FeatureRows(95, 4, bytes(range(4 * ROW))))
TREE = DraftTree(np.array([5, 9, 7, 9], np.uint32), np.array([0, 0, 2, 1]))
# The walk along y: 9, which is node 2, then 7, which is node 3.
Y = Verification(VerifyForm.Y, np.array([9, 1, 7, 3, 2], np.uint32))
VERIFY = VerifyRequest(1, 90, CONTEXT, TREE)


def features(rows: int, context_rows: int) -> VerifiedFeatures:
    return VerifiedFeatures(FeatureRows(99 - context_rows, rows, bytes(ROW * rows)), context_rows)


def decoded(reply: VerifyReply, request: VerifyRequest, feature_bytes: int = ROW) -> VerifyReply:
    wire = target_pb2.VerifyResponse.FromString(encode_verify_reply(reply).SerializeToString())
    return decode_verify_reply(wire, request, vocab_size=VOCAB, logprobs=None, feature_bytes=feature_bytes)


@given(rows=st.integers(0, 9), size=st.integers(1, 9))
def test_a_requests_rows_survive_the_wire(rows: int, size: int) -> None:
    sent = replace(ASKED, features=FeatureRows(99 - rows, rows, bytes(range(rows * size))) if rows else None)
    wire = encode_draft_request(sent).SerializeToString()
    assert decode_draft_request(draft_pb2.DraftRequest.FromString(wire), vocab_size=VOCAB).features == sent.features


def test_a_request_without_rows_is_not_a_byte_longer() -> None:
    without, empty = replace(ASKED, features=None), replace(ASKED, features=FeatureRows(7, 0, b""))
    assert encode_draft_request(without) == encode_draft_request(empty)
    assert not encode_draft_request(without).HasField("open")
    assert encode_draft_request(ASKED).ByteSize() - encode_draft_request(without).ByteSize() <= 4 * ROW + 6


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"feature_rows": 0}, "feature_rows"),
        ({"feature_rows": MAX_ROWS + 1, "features": bytes(MAX_ROWS + 1)}, "feature_rows"),
        ({"feature_rows": 5}, "features"),
        ({"features": b""}, "features"),
        ({"feature_offset": 96}, "feature_offset"),
        ({"feature_offset": 2**32 - 1}, "feature_offset"),
        ({"offset": 0, "token_ids": b""}, "feature_offset"),
    ],
)
def test_rows_that_cannot_be_are_the_callers_mistake(change: dict[str, object], field: str) -> None:
    message = encode_draft_request(ASKED)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(InvalidArgument) as refused:
        decode_draft_request(message, vocab_size=VOCAB)
    assert refused.value.field == field


@pytest.mark.parametrize("layers", [[2, 1], [3, 3]])
def test_layers_that_do_not_ascend_are_refused_by_name(layers: list[int]) -> None:
    message = encode_open(OpenSession("s", SamplingParams(), 1, 0))
    message.feature_layers.extend(layers)
    with pytest.raises(InvalidArgument) as refused:
        decode_open(message)
    assert refused.value.field == "open.feature_layers"


@pytest.mark.parametrize(("form", "nodes"), [(VerifyForm.Y, 3), (VerifyForm.PQ, 5)])
@pytest.mark.parametrize("context_rows", [0, 1, FEATURE_WINDOW])
def test_a_replys_rows_survive_the_wire_in_the_number_that_the_form_calls_for(
    form: VerifyForm, nodes: int, context_rows: int
) -> None:
    """Without a tree of its own: form PQ needs laws, which are tested elsewhere."""
    request = VERIFY if form is VerifyForm.Y else replace(VERIFY, form=form, tree=DraftTree.chain([]))
    verification = Y if form is VerifyForm.Y else Verification(form, np.array([4], np.uint32))
    nodes = nodes if form is VerifyForm.Y else 1
    reply = VerifyReply(1, verification, features=features(context_rows + nodes, context_rows))
    assert decoded(reply, request).features == reply.features


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (None, "feature_rows"),
        (features(5, 0), "feature_rows"),  # all nodes where the walk was called for
        (features(2, 0), "feature_rows"),
        (features(3, 1), "feature_rows"),
        (features(3 + FEATURE_WINDOW + 1, FEATURE_WINDOW + 1), "context_feature_rows"),
        (VerifiedFeatures(FeatureRows(99, 3, bytes(3 * ROW + 3)), 0), "features"),
    ],
)
def test_rows_that_were_not_called_for_are_the_replicas_fault(sent: VerifiedFeatures | None, field: str) -> None:
    with pytest.raises(ReplicaFault, match=f"^{field} ="):
        decoded(VerifyReply(1, Y, features=sent), VERIFY)


def test_no_more_rows_come_than_there_are_positions() -> None:
    request = replace(VERIFY, offset=0, token_ids=CONTEXT[:3])
    sent = VerifiedFeatures(FeatureRows(0, 6, bytes(6 * ROW)), 3)
    with pytest.raises(ReplicaFault, match="context_feature_rows = 3: at most 2"):
        decoded(VerifyReply(1, Y, features=sent), request)


def test_rows_that_nobody_wanted_are_the_replicas_fault() -> None:
    with pytest.raises(ReplicaFault, match="none were asked for"):
        decoded(VerifyReply(1, Y, features=features(3, 0)), VERIFY, feature_bytes=0)


def test_a_refusal_needs_no_rows() -> None:
    reply = VerifyReply(1, Refusal("BROKEN", "no"))
    assert decoded(reply, VERIFY) == reply
