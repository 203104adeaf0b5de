"""Info on the wire: an old replica's has no step times, and what is no table is the replica's fault."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from protos import common_pb2
from specdec.core.errors import ReplicaFault
from specdec.core.step_time import StepTimeTable
from specdec.edge.codec import F32, U32, encode_array
from specdec.edge.info_codec import decode_info, decode_step_times, encode_info, encode_step_times
from specdec.edge.messages import ReplicaInfo
from tests.edge.messages import infos


@given(infos)
def test_info_survives_the_wire(info: ReplicaInfo) -> None:
    wire = encode_info(info).SerializeToString()
    assert decode_info(common_pb2.ReplicaInfo.FromString(wire)) == info


def test_a_replica_that_knows_nothing_of_step_times_is_understood() -> None:
    assert decode_info(common_pb2.ReplicaInfo(role="target")).step_times is None


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
