from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.session import ChatMessage, SessionRecord
from coordinator.store import record_codec
from coordinator.turn import Turn
from specdec.core.errors import FailedPrecondition
from specdec.core.sampling import SamplingParams
from tests.coordinator.store.kinds import ids, record, same

floats = st.floats(allow_nan=False)
small = st.integers(0, 2**31)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
params = st.builds(
    SamplingParams,
    temperature=floats,
    top_k=small,
    top_p=floats,
    presence_penalty=floats,
    logit_bias=st.lists(st.tuples(small, floats), max_size=4).map(tuple),
    end_ids=st.lists(small, max_size=3).map(tuple),
    logprobs=st.none() | small,
)
turns = st.builds(
    Turn,
    params=params,
    max_tokens=small,
    seed=st.integers(0, 2**64 - 1),
    seeded=st.booleans(),
    stop=st.lists(text, max_size=3).map(tuple),
    eos_ids=st.lists(small, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    num_draft_tokens=st.none() | small,
    drafter=st.none() | text,
    verification=st.none() | text,
)
records = st.builds(
    SessionRecord,
    session_id=text,
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=40).map(lambda v: np.array(v, dtype=np.uint32)),
    turn_start=small,
    turn=turns,
    fingerprint=text,
    dtype=text,
    messages=st.lists(st.builds(ChatMessage, role=text, content=text), max_size=3).map(tuple),
    finish=st.none() | st.sampled_from(["stop", "length"]),
    running=st.booleans(),
    epoch=st.integers(1, 2**52),
    held=st.dictionaries(text, small, max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(records)
def test_every_record_comes_back_exactly(written: SessionRecord) -> None:
    meta, raw = record_codec.encode(written), record_codec.encode_ids(written.token_ids)
    read = record_codec.decode(written.session_id, meta, raw)
    assert same(written, read) and read.epoch == written.epoch
    assert repr(read.turn) == repr(written.turn), "a float or a type changed"


def test_nothing_but_the_ids_and_the_session_id_is_left_out() -> None:
    body = json.loads(record_codec.encode(record("s"))["body"])
    elsewhere = {"session_id", "token_ids", "finish", "running", "epoch", "held"}
    assert body.keys() | elsewhere == {field.name for field in fields(SessionRecord)}


def test_token_ids_are_four_little_endian_bytes_each() -> None:
    assert record_codec.encode_ids(ids(1, 2**32 - 2)) == b"\x01\0\0\0\xfe\xff\xff\xff"


def test_ids_of_another_type_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        record_codec.encode_ids(np.array([1, -1]))


@pytest.mark.parametrize("where", ["turn", "params"])
def test_a_record_of_a_newer_version_is_refused_rather_than_sampled_differently(where: str) -> None:
    meta = record_codec.encode(record("s"))
    body = json.loads(meta["body"])
    (body["turn"] if where == "turn" else body["turn"]["params"])["new_knob"] = 1
    with pytest.raises(FailedPrecondition, match="new_knob") as caught:
        record_codec.decode("s", meta | {"body": json.dumps(body)}, b"")
    assert caught.value.reason == "RECORD_VERSION"


def test_a_record_of_an_older_version_gets_the_default_of_a_new_knob() -> None:
    meta = record_codec.encode(record("s"))
    body = json.loads(meta["body"])
    del body["turn"]["params"]["min_p"]
    assert record_codec.decode("s", meta | {"body": json.dumps(body)}, b"").turn == record("s").turn
