from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import draft_pb2
from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.errors import DraftFault, InvalidArgument
from specdec.core.tree import DraftTree
from specdec.edge.draft_codec import (
    decode_draft,
    decode_draft_reply,
    decode_draft_request,
    encode_draft,
    encode_draft_reply,
    encode_draft_request,
)
from specdec.edge.messages import DraftReply, DraftRequest, Load, Refusal, StaleContext, Timing
from tests.edge.messages import VOCAB, draft_requests, drafts, loads, others, same, timings, u32

ASKED = DraftRequest(1, 0, np.zeros(0, np.uint32), 255, DraftKind.SAMPLED, 32)
IDS = np.array([5, 9, 7], np.uint32)
LAW = DraftLaw(IDS, np.array([0.5, 0.25, 0.25], np.float16))
SAMPLED = Draft(DraftTree.chain([9, 5]), DraftKind.SAMPLED, (LAW, LAW), "lm", 1.5)


@given(draft_requests)
def test_a_request_survives_the_wire(request: DraftRequest) -> None:
    wire = encode_draft_request(request).SerializeToString()
    assert same(decode_draft_request(draft_pb2.DraftRequest.FromString(wire), vocab_size=VOCAB), request)


@given(drafts(), u32, timings, loads)
def test_a_reply_survives_the_wire_and_its_law_is_bit_equal_on_both_sides(
    draft: Draft, cycle: int, timing: Timing, load: Load
) -> None:
    reply = DraftReply(cycle, draft, timing, load)
    wire = encode_draft_reply(reply).SerializeToString()
    back = decode_draft_reply(draft_pb2.DraftResponse.FromString(wire), ASKED, vocab_size=VOCAB)
    assert same(back, reply)
    assert isinstance(back.result, Draft)
    for sent, received in zip(draft.laws, back.result.laws, strict=True):
        assert same(sent.q, received.q)


@given(others, timings)
def test_stale_and_refused_survive_the_wire(result: StaleContext | Refusal, timing: Timing) -> None:
    reply = DraftReply(7, result, timing, Load())
    assert same(decode_draft_reply(encode_draft_reply(reply), ASKED, vocab_size=VOCAB), reply)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"mode": 0}, "mode"),
        ({"num_draft_tokens": 0}, "num_draft_tokens"),
        ({"num_draft_tokens": 256}, "num_draft_tokens"),
        ({"support": 0}, "support"),
        ({"support": 256}, "support"),
        ({"token_ids": b"\0\0\0"}, "token_ids"),
        ({"token_ids": b"\xff\xff\xff\xff"}, "token_ids"),
    ],
)
def test_a_malformed_request_is_the_callers_mistake(change: dict[str, object], field: str) -> None:
    message = encode_draft_request(ASKED)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(InvalidArgument) as refused:
        decode_draft_request(message, vocab_size=VOCAB)
    assert refused.value.field == field


BAD = {
    "unknown kind": {"kind": 0},
    "infinite score": {"score": float("inf")},
    "token outside the vocabulary": {"token_ids": b"\xff\xff\xff\xff" * 2},
    "token outside its support": {"token_ids": (8).to_bytes(4, "little") * 2},
    "parent after its child": {"parents": b"\0\2"},
    "torn ids": {"support_ids": b"\0" * 23},
    "too few ids": {"support_ids": b"\0" * 20},
    "too few laws": {"support_sizes": b"\3"},
    "an empty law": {"support_sizes": b"\6\0"},
    "a repeated id": {"support_ids": np.array([5, 9, 9, 5, 9, 7], np.uint32).tobytes()},
    "NaN": {"support_q": np.array([np.nan, 1, 1, 1, 1, 1], np.float16).tobytes()},
    "infinite weight": {"support_q": np.array([np.inf, 1, 1, 1, 1, 1], np.float16).tobytes()},
    "negative weight": {"support_q": np.array([-1, 3, 1, 1, 1, 1], np.float16).tobytes()},
    "a law without mass": {"support_q": np.array([1, 1, 1, 0, 0, 0], np.float16).tobytes()},
    "too many weights": {"support_q": np.ones(7, np.float16).tobytes()},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_draft_that_must_not_be_judged_is_a_draft_fault(change: dict[str, object]) -> None:
    message = encode_draft(SAMPLED)
    assert same(decode_draft(message, vocab_size=VOCAB), SAMPLED)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(DraftFault):
        decode_draft(message, vocab_size=VOCAB)


def test_a_chosen_draft_with_laws_is_a_draft_fault() -> None:
    message = encode_draft(SAMPLED)
    message.kind = draft_pb2.DRAFT_KIND_CHOSEN
    with pytest.raises(DraftFault, match="chosen"):
        decode_draft(message, vocab_size=VOCAB)


def test_more_tokens_than_asked_another_kind_and_an_empty_reply_are_draft_faults() -> None:
    reply = encode_draft_reply(DraftReply(1, SAMPLED))
    with pytest.raises(DraftFault, match="at most 1"):
        decode_draft_reply(reply, replace(ASKED, num_draft_tokens=1), vocab_size=VOCAB)
    with pytest.raises(DraftFault, match="chosen"):
        decode_draft_reply(reply, replace(ASKED, kind=DraftKind.CHOSEN), vocab_size=VOCAB)
    with pytest.raises(DraftFault, match="result"):
        decode_draft_reply(draft_pb2.DraftResponse(cycle=1), ASKED, vocab_size=VOCAB)


@given(st.binary(max_size=200))
def test_any_bytes_that_parse_are_a_draft_or_a_draft_fault(data: bytes) -> None:
    message = draft_pb2.Draft(kind=draft_pb2.DRAFT_KIND_SAMPLED)
    cut = len(data) // 4
    message.token_ids, message.parents = data[:cut], data[cut : cut + cut // 4]
    message.support_sizes, message.support_q = data[-4:], data[: cut * 2]
    message.support_ids = data
    try:
        decode_draft(message, vocab_size=VOCAB)
    except DraftFault:
        return
