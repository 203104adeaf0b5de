import math

import numpy as np
import pytest
from hypothesis import given

from protos import common_pb2
from specdec.core.errors import DraftFault, InvalidArgument, ReplicaFault
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.edge import codec
from specdec.edge.messages import Load, OpenSession, Timing
from tests.edge.messages import VOCAB, loads, params, same, sessions, timings, trees


@given(params)
def test_params_survive_the_wire(value: SamplingParams) -> None:
    wire = codec.encode_params(value).SerializeToString()
    assert codec.decode_params(common_pb2.SamplingParams.FromString(wire)) == value


@given(sessions)
def test_open_survives_the_wire(value: OpenSession) -> None:
    wire = codec.encode_open(value).SerializeToString()
    assert codec.decode_open(common_pb2.OpenSession.FromString(wire)) == value


@given(timings, loads)
def test_timing_and_load_survive_the_wire(timing: Timing, load: Load) -> None:
    assert codec.decode_timing(codec.encode_timing(timing)) == timing
    assert codec.decode_load(codec.encode_load(load)) == load


@given(trees())
def test_a_tree_survives_the_wire_at_one_byte_a_parent_and_none_for_a_chain(tree: DraftTree) -> None:
    parents = codec.encode_parents(tree)
    assert len(parents) == (0 if tree.is_chain else tree.num_draft_tokens)
    token_ids = codec.encode_array(tree.token_ids, codec.U32)
    assert same(codec.decode_tree(token_ids, parents, InvalidArgument, vocab_size=VOCAB), tree)


def test_vectors_are_little_endian_and_come_back_as_owned_native_arrays() -> None:
    wire = codec.encode_array(np.array([1, 0x01020304], ">u4"), codec.U32)
    assert wire == b"\x01\0\0\0\x04\x03\x02\x01"
    back = codec.decode_array(wire, codec.U32, "ids", InvalidArgument)
    assert back.flags.owndata
    assert back.flags.writeable
    assert back.dtype == np.uint32


@pytest.mark.parametrize("fault", [InvalidArgument, codec.replica_fault, codec.draft_fault])
def test_a_torn_vector_a_wrong_length_and_a_foreign_id_are_the_senders_fault(fault: codec.Fault) -> None:
    kind = type(fault("f", 1, "p"))
    assert kind in (InvalidArgument, ReplicaFault, DraftFault)
    for data, length in ((b"\0" * 7, None), (b"\0" * 8, 3), (b"\0" * 9, 2)):
        with pytest.raises(kind, match="ids"):
            codec.decode_array(data, codec.U32, "ids", fault, length=length)
    with pytest.raises(kind, match="vocabulary"):
        codec.decode_ids(VOCAB.to_bytes(4, "little"), "ids", fault, vocab_size=VOCAB)


@pytest.mark.parametrize(("tokens", "parents"), [(2, b"\0"), (0, b"\0"), (2, b"\0\2"), (1, b"\1"), (256, b"")])
def test_what_is_no_tree_is_refused(tokens: int, parents: bytes) -> None:
    with pytest.raises(InvalidArgument, match="draft_parents"):
        codec.decode_tree(b"\0" * 4 * tokens, parents, InvalidArgument, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 1.5),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("presence_penalty", -math.inf),
        ("logprobs", 21),
        ("logit_biases", b"\0\0\0\0"),
        ("logit_bias_ids", b"\0\0\0"),
    ],
)
def test_parameters_that_no_law_has_are_refused_by_name(field: str, value: object) -> None:
    message = codec.encode_params(SamplingParams())
    setattr(message, field, value)
    with pytest.raises(InvalidArgument) as refused:
        codec.decode_params(message)
    assert refused.value.field in (field, "logit_biases")


def test_another_protocol_version_is_refused() -> None:
    session = OpenSession("s", SamplingParams(), 1, 0, protocol_version=2)
    with pytest.raises(InvalidArgument, match="protocol_version = 2"):
        codec.decode_open(codec.encode_open(session))
