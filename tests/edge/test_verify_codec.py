import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import target_pb2
from specdec.core.errors import InvalidArgument, ReplicaFault
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, TargetLaw, Verification, VerifyForm
from specdec.edge.messages import Load, Refusal, StaleContext, Timing, VerifyReply, VerifyRequest
from specdec.edge.verify_codec import (
    decode_verification,
    decode_verify_reply,
    decode_verify_request,
    encode_verification,
    encode_verify_reply,
    encode_verify_request,
)
from tests.edge.messages import VOCAB, loads, others, same, timings, verifications, verify_requests

SUPPORT = np.array([5, 9, 7], np.uint32)
PQ = VerifyRequest(3, 0, SUPPORT, DraftTree.chain([9, 5]), VerifyForm.PQ, (SUPPORT, SUPPORT))
Y = VerifyRequest(3, 0, SUPPORT, DraftTree.chain([9, 5]), VerifyForm.Y, want_child_p=True)
LAW = TargetLaw(SUPPORT, np.array([0.5, 0.25, 0.125], np.float32), 0.125)
PQ_ANSWER = Verification(VerifyForm.PQ, np.array([1, 2, 3], np.uint32), (LAW, LAW))
Y_ANSWER = Verification(VerifyForm.Y, np.array([9, 2, 3], np.uint32), child_p=np.array([0.5, 1], np.float32))


@given(verify_requests())
def test_a_request_survives_the_wire(request: VerifyRequest) -> None:
    wire = encode_verify_request(request).SerializeToString()
    message = target_pb2.VerifyRequest.FromString(wire)
    assert same(decode_verify_request(message, vocab_size=VOCAB, max_nodes=255), request)


@given(st.data(), verify_requests(), st.none() | st.integers(0, 20), timings, loads)
def test_a_reply_survives_the_wire(
    data: st.DataObject, request: VerifyRequest, logprobs: int | None, timing: Timing, load: Load
) -> None:
    reply = VerifyReply(request.cycle, data.draw(verifications(request, logprobs)), timing, load)
    message = target_pb2.VerifyResponse.FromString(encode_verify_reply(reply).SerializeToString())
    assert same(decode_verify_reply(message, request, vocab_size=VOCAB, logprobs=logprobs), reply)


@given(others, timings)
def test_stale_and_refused_survive_the_wire(result: StaleContext | Refusal, timing: Timing) -> None:
    reply = VerifyReply(7, result, timing, Load())
    assert same(decode_verify_reply(encode_verify_reply(reply), PQ, vocab_size=VOCAB, logprobs=None), reply)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"form": 4}, "form"),
        ({"form": 0}, "form"),
        ({"form": target_pb2.VERIFY_FORM_Y}, "support_sizes"),
        ({"form": target_pb2.VERIFY_FORM_TYPICAL}, "support_sizes"),
        ({"draft_token_ids": b"\xff\xff\xff\xff" * 2}, "draft_token_ids"),
        ({"draft_parents": b"\1\1"}, "draft_parents"),
        ({"draft_token_ids": b"\0" * 12}, "draft_token_ids"),
        ({"support_sizes": b"\3"}, "support_sizes"),
        ({"support_sizes": b"\6\0"}, "support_sizes"),
        ({"support_ids": b"\0" * 24}, "support_ids"),
        ({"token_ids": b"\0"}, "token_ids"),
    ],
)
def test_a_malformed_request_is_the_callers_mistake(change: dict[str, object], field: str) -> None:
    message = encode_verify_request(PQ)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(InvalidArgument) as refused:
        decode_verify_request(message, vocab_size=VOCAB, max_nodes=2)
    assert refused.value.field == field


def f32(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def u32(*values: int) -> bytes:
    return np.array(values, np.uint32).tobytes()


BAD = {
    "a draw too few": {"drawn": u32(1, 2)},
    "a draw outside the vocabulary": {"drawn": u32(1, 2, VOCAB)},
    "no outside sample though there is a tail": {"drawn": u32(1, NO_OUTSIDE, 3)},
    "no draw at a leaf": {"drawn": u32(1, 2, NO_OUTSIDE)},
    "an outside sample inside": {"drawn": u32(1, 7, 3)},
    "p of one entry too few": {"support_p": f32(0.5, 0.25, 0.125, 0.5, 0.25)},
    "NaN": {"support_p": f32(0.5, 0.25, float("nan"), 0.5, 0.25, 0.125)},
    "negative p": {"support_p": f32(1.0, -0.125, 0.0, 0.5, 0.25, 0.125)},
    "p above 1": {"support_p": f32(2.0, 0.0, 0.0, 0.5, 0.25, 0.125)},
    "mass missing": {"support_p": f32(0.25, 0.25, 0.125, 0.5, 0.25, 0.125)},
    "NaN tail": {"tails": f32(0.125, float("nan"))},
    "a tail too many": {"tails": f32(0.125, 0.125, 0.125)},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_what_no_healthy_verifier_answers_is_a_replica_fault(change: dict[str, bytes]) -> None:
    message = encode_verification(PQ_ANSWER)
    assert same(decode_verification(message, PQ, vocab_size=VOCAB, logprobs=None), PQ_ANSWER)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(ReplicaFault):
        decode_verification(message, PQ, vocab_size=VOCAB, logprobs=None)


@pytest.mark.parametrize(
    "change",
    [
        {"drawn": u32(1, 2, NO_OUTSIDE)},
        {"child_p": f32(0.5)},
        {"child_p": f32(0.5, float("nan"))},
        {"child_p": b""},
        {"drawn_logprobs": b""},
        {"drawn_logprobs": f32(-1, float("nan"), -1)},
        {"drawn_logprobs": f32(-1, 0.5, -1)},
        {"top_ids": u32(1, 2)},
        {"top_logprobs": f32(-1, -1, -1, -1)},
    ],
)
def test_a_malformed_y_form_answer_is_a_replica_fault(change: dict[str, bytes]) -> None:
    message = encode_verification(Y_ANSWER)
    message.drawn_logprobs = message.top_logprobs = f32(-1, -2, -3)
    message.top_ids = u32(1, 2, 3)
    decode_verification(message, Y, vocab_size=VOCAB, logprobs=1)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(ReplicaFault):
        decode_verification(message, Y, vocab_size=VOCAB, logprobs=1)


def test_an_empty_reply_is_a_replica_fault() -> None:
    with pytest.raises(ReplicaFault, match="result"):
        decode_verify_reply(target_pb2.VerifyResponse(cycle=1), PQ, vocab_size=VOCAB, logprobs=None)
