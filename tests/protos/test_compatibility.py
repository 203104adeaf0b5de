"""Versions mix while a deployment is upgraded. Whoever speaks a released version is understood by the present one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

from specdec.edge.channel import open_channel
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, letters_folder
from tests.protos.compatibility import RELEASED, ROOT, breaks, described, message_classes

VERSIONS = sorted(RELEASED.iterdir())


def message(files: FileDescriptorSet, name: str) -> DescriptorProto:
    (found,) = (one for file in files.file for one in file.message_type if one.name == name)
    return found


def field(files: FileDescriptorSet, of: str, name: str) -> FieldDescriptorProto:
    (found,) = (one for one in message(files, of).field if one.name == name)
    return found


def removed(files: FileDescriptorSet, of: str, name: str) -> int:
    number = field(files, of, name).number
    message(files, of).field.remove(field(files, of, name))
    return number


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)
def test_every_released_field_means_what_it_meant(version: Path) -> None:
    """At a release, protos/*.proto is copied to protos/released/VERSION/protos, and stays there."""
    assert breaks(described(version), described(ROOT)) == []


def renumber(files: FileDescriptorSet) -> None:
    field(files, "Timing", "queue_us").number = 9


def retype(files: FileDescriptorSet) -> None:
    field(files, "Timing", "queue_us").type = FieldDescriptorProto.TYPE_STRING


def repeat(files: FileDescriptorSet) -> None:
    field(files, "OpenSession", "drafter").label = FieldDescriptorProto.LABEL_REPEATED


def rename(files: FileDescriptorSet) -> None:
    field(files, "OpenSession", "drafter").name = "source"


def remove(files: FileDescriptorSet) -> None:
    removed(files, "Draft", "score")


def reuse(files: FileDescriptorSet) -> None:
    number = removed(files, "Draft", "score")
    message(files, "Draft").field.add(name="luck", number=number, type=FieldDescriptorProto.TYPE_FLOAT)


def leave_oneof(files: FileDescriptorSet) -> None:
    field(files, "DraftResponse", "refusal").ClearField("oneof_index")


def drop_message(files: FileDescriptorSet) -> None:
    for file in files.file:
        for one in [one for one in file.message_type if one.name == "Usage"]:
            file.message_type.remove(one)


def change_map(files: FileDescriptorSet) -> None:
    (entry,) = message(files, "DraftStats").nested_type[:1]
    entry.field[1].type = FieldDescriptorProto.TYPE_STRING


def renumber_enum(files: FileDescriptorSet) -> None:
    (kind,) = (enum for file in files.file for enum in file.enum_type if enum.name == "FinishReason")
    kind.value[1].number, kind.value[2].number = 2, 1


def stream_no_more(files: FileDescriptorSet) -> None:
    (service,) = (one for file in files.file for one in file.service if one.name == "GenerationService")
    service.method[1].server_streaming = False


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (renumber, "Timing.queue_us"), (retype, "TYPE_STRING"), (repeat, "LABEL_REPEATED"), (rename, "source"),
        (remove, "neither used nor reserved"), (reuse, "luck"), (leave_oneof, "refusal"), (drop_message, "Usage"),
        (change_map, "DraftStats."), (renumber_enum, "FinishReason"), (stream_no_more, "Generate"),
    ],
)  # fmt: skip
def test_what_would_be_misunderstood_is_named(change: Callable[[FileDescriptorSet], None], named: str) -> None:
    after = described(ROOT)
    change(after)
    found = breaks(described(ROOT), after)
    assert found
    assert any(named in sentence for sentence in found), found


def add(files: FileDescriptorSet) -> None:
    message(files, "Draft").field.add(name="luck", number=99, type=FieldDescriptorProto.TYPE_FLOAT)


def retire(files: FileDescriptorSet) -> None:
    number = removed(files, "Draft", "score")
    draft = message(files, "Draft")
    draft.reserved_range.add(start=number, end=number + 1)
    draft.reserved_name.append("score")


@pytest.mark.parametrize("change", [add, retire])
def test_a_new_field_and_one_retired_with_its_number_and_name_are_no_break(
    change: Callable[[FileDescriptorSet], None],
) -> None:
    after = described(ROOT)
    change(after)
    assert breaks(described(ROOT), after) == []


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)
async def test_a_client_of_a_released_version_is_served(tmp_path: Path, version: Path) -> None:
    """Through messages made from that version's own files, none of today's stubs among them."""
    old: Any = message_classes(described(version))
    folder = letters_folder(tmp_path / "m", 5)
    replicas = [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]
    async with stack(folder, *replicas) as s, open_channel(s.address) as channel:
        info = await channel.unary_unary(
            "/specdec.v1.GenerationService/Info",
            request_serializer=old["InfoRequest"].SerializeToString,
            response_deserializer=old["ServiceInfo"].FromString,
        )(old["InfoRequest"]())
        generate = channel.unary_stream(
            "/specdec.v1.GenerationService/Generate",
            request_serializer=old["GenerateRequest"].SerializeToString,
            response_deserializer=old["GenerateResponse"].FromString,
        )
        request = old["GenerateRequest"](token_ids={"ids": [1]}, max_tokens=20, seed=3, num_draft_tokens=3)
        events = [event async for event in generate(request)]
        today = await s.generate(token_ids=[1], max_tokens=20, seed=3, num_draft_tokens=3)
    assert (info.vocab_size, info.ready_verifiers, info.ready_drafters) == (5, 1, 1)
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "complete"
    assert [token.id for event in events for token in event.chunk.tokens] == today.ids
    assert events[-1].complete.usage.completion_tokens == 20
    assert events[-1].complete.draft_stats.drafts > 0
