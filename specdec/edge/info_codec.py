"""ReplicaInfo <-> protos/common.proto."""

from __future__ import annotations

import itertools
from dataclasses import fields

import numpy as np

from protos import common_pb2
from specdec.core.step_time import StepTimeTable
from specdec.edge.codec import (
    F32,
    U32,
    decode_array,
    decode_layers,
    decode_load,
    encode_array,
    encode_load,
    replica_fault,
)
from specdec.edge.messages import DrafterInfo, ReplicaInfo

_FIELDS = tuple(
    field.name
    for field in common_pb2.ReplicaInfo.DESCRIPTOR.fields
    if field.name not in ("load", "config", "step_times", "drafter_infos")
)


def encode_info(info: ReplicaInfo) -> common_pb2.ReplicaInfo:
    values = {name: getattr(info, name) for name in _FIELDS}
    values["drafter_infos"] = [_encode_drafter(drafter) for drafter in info.drafter_infos]
    message = common_pb2.ReplicaInfo(load=encode_load(info.load), config=dict(info.config), **values)
    if info.step_times is not None:
        message.step_times.CopyFrom(encode_step_times(info.step_times))
    return message


def decode_info(message: common_pb2.ReplicaInfo) -> ReplicaInfo:
    """Raises ReplicaFault."""
    values = {name: getattr(message, name) for name in _FIELDS}
    values["eos_ids"], values["drafters"] = tuple(message.eos_ids), tuple(message.drafters)
    values["drafter_infos"] = _decode_drafters(message)
    times = decode_step_times(message.step_times) if message.HasField("step_times") else None
    return ReplicaInfo(load=decode_load(message.load), config=dict(message.config), step_times=times, **values)


def _encode_drafter(info: DrafterInfo) -> common_pb2.DrafterInfo:
    return common_pb2.DrafterInfo(**{field.name: getattr(info, field.name) for field in fields(DrafterInfo)})


def _decode_drafters(message: common_pb2.ReplicaInfo) -> tuple[DrafterInfo, ...]:
    names = [drafter.name for drafter in message.drafter_infos]
    if len(set(names)) < len(names) or not set(names) <= set(message.drafters):
        raise replica_fault("drafter_infos", names, f"must be distinct and among {list(message.drafters)}")
    return tuple(
        DrafterInfo(
            name=drafter.name,
            tree=drafter.tree,
            feature_layers=decode_layers(drafter.feature_layers, "drafter_infos.feature_layers", replica_fault),
            feature_size=drafter.feature_size,
            target_base_fingerprint=drafter.target_base_fingerprint,
        )
        for drafter in message.drafter_infos
    )


def encode_step_times(table: StepTimeTable) -> common_pb2.StepTimes:
    return common_pb2.StepTimes(
        rows=encode_array(np.array(table.rows), U32),
        contexts=encode_array(np.array(table.contexts), U32),
        seconds=encode_array(np.array(table.seconds), F32),
    )


def decode_step_times(message: common_pb2.StepTimes) -> StepTimeTable:
    """Raises ReplicaFault."""
    rows = _decode_knots(message.rows, "step_times.rows", least=1)
    contexts = _decode_knots(message.contexts, "step_times.contexts", least=0)
    size = len(rows) * len(contexts)
    seconds = decode_array(message.seconds, F32, "step_times.seconds", replica_fault, length=size)
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise replica_fault("step_times.seconds", float(seconds.min()), "must be positive numbers")
    return StepTimeTable.of(rows, contexts, seconds.reshape(len(rows), len(contexts)))


def _decode_knots(data: bytes, field: str, *, least: int) -> list[int]:
    knots: list[int] = decode_array(data, U32, field, replica_fault).tolist()
    if not knots or knots[0] < least or any(a >= b for a, b in itertools.pairwise(knots)):
        raise replica_fault(field, knots, f"must ascend from at least {least}")
    return knots
