"""Info on the wire: an old replica's has no step times, and what is no table is the replica's fault."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from protos import common_pb2
from specdec.core.errors import ReplicaFault
from specdec.core.step_time import StepTimeTable
from specdec.edge.codec import F32, U32, encode_array
from specdec.edge.info_codec import decode_info, decode_step_times, encode_info, encode_step_times
from specdec.edge.messages import DrafterInfo, ReplicaInfo
from tests.edge.messages import infos


@given(infos)
def test_info_survives_the_wire(info: ReplicaInfo) -> None:
    wire = encode_info(info).SerializeToString()
    assert decode_info(common_pb2.ReplicaInfo.FromString(wire)) == info


def test_a_replica_that_knows_nothing_of_step_times_is_understood() -> None:
    assert decode_info(common_pb2.ReplicaInfo(role="target")).step_times is None


@pytest.mark.parametrize(
    ("drafters", "field"),
    [
        ([{"name": "eagle"}, {"name": "eagle"}], "drafter_infos"),
        ([{"name": "medusa"}], "drafter_infos"),
        ([{"name": "eagle", "feature_layers": [3, 2]}], "feature_layers"),
        ([{"name": "eagle", "feature_layers": [2, 2]}], "feature_layers"),
    ],
)
def test_drafters_that_cannot_be_are_the_replicas_fault(drafters: list[dict[str, Any]], field: str) -> None:
    message = common_pb2.ReplicaInfo(role="draft", drafters=["eagle", "lm"])
    message.drafter_infos.extend(common_pb2.DrafterInfo(**drafter) for drafter in drafters)
    with pytest.raises(ReplicaFault, match=field):
        decode_info(message)


def test_a_drafter_of_which_nothing_is_said_needs_nothing() -> None:
    info = decode_info(common_pb2.ReplicaInfo(role="draft", drafters=["eagle", "lm"]))
    assert info.drafter_info("lm") == DrafterInfo("lm")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", []),
        ("rows", [0, 4]),
        ("rows", [4, 4]),
        ("contexts", []),
        ("contexts", [9, 8]),
        ("seconds", [1.0] * 3),
        ("seconds", [1.0, 1.0, 1.0, 0.0]),
        ("seconds", [1.0, 1.0, 1.0, math.nan]),
        ("seconds", [1.0, 1.0, 1.0, math.inf]),
    ],
)
def test_what_is_no_table_is_the_replicas_fault_and_named(field: str, value: list[float]) -> None:
    message = encode_step_times(StepTimeTable.of((1, 8), (0, 512), [[1.0, 2.0], [2.0, 3.0]]))
    setattr(message, field, encode_array(np.array(value), F32 if field == "seconds" else U32))
    with pytest.raises(ReplicaFault, match="step_times"):
        decode_step_times(message)
