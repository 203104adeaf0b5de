"""What a released version of the messages says, and whether the present one still says the same to whoever speaks it:
a number means what it meant, and what is gone is never given to something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "protos" / "released"
Field = FieldDescriptorProto


@cache
def _compiled(root: Path) -> bytes:
    protos = sorted(str(path.relative_to(root)) for path in root.glob("protos/*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--descriptor_set_out=/dev/stdout", *protos]
    return subprocess.run(command, cwd=root, check=True, capture_output=True).stdout


def described(root: Path) -> FileDescriptorSet:
    """The .proto files in `root`/protos, compiled. A fresh copy at each call."""
    return FileDescriptorSet.FromString(_compiled(root))


def message_classes(files: FileDescriptorSet) -> dict[str, Any]:
    """Classes of these messages by name, beside the generated ones of the process."""
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found = message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool)
    return {name.removeprefix("specdec.v1."): kind for name, kind in found.items()}


def breaks(before: FileDescriptorSet, after: FileDescriptorSet) -> list[str]:
    """A sentence for everything by which those who speak `before` would misunderstand those who speak `after`."""
    found: list[str] = []
    new_messages, new_enums = dict(_messages(after)), dict(_enums(after))
    for name, old in _messages(before):
        found += _message_breaks(name, old, new_messages.get(name))
    for name, old_enum in _enums(before):
        found += _enum_breaks(name, old_enum, new_enums.get(name))
    methods = dict(_methods(after))
    for name, shape in _methods(before):
        if methods.get(name) != shape:
            found.append(f"method {name}{shape} is now {methods.get(name, 'gone')}")
    return found


def _message_breaks(name: str, old: DescriptorProto, new: DescriptorProto | None) -> Iterator[str]:
    if new is None:
        yield f"message {name} is gone"
        return
    present = {field.number: field for field in new.field}
    for field in old.field:
        successor = present.get(field.number)
        if successor is not None:
            if _shape(successor, new) != _shape(field, old):
                yield f"{name}: number {field.number} was {_shape(field, old)}, is {_shape(successor, new)}"
        else:
            if not any(block.start <= field.number < block.end for block in new.reserved_range):
                yield f"{name}.{field.name}: its number {field.number} is neither used nor reserved"
            if field.name not in new.reserved_name:
                yield f"{name}.{field.name}: its name is neither used nor reserved"


def _enum_breaks(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto | None) -> Iterator[str]:
    if new is None:
        yield f"enum {name} is gone"
        return
    present = {value.number: value.name for value in new.value}
    for value in old.value:
        reserved = any(block.start <= value.number <= block.end for block in new.reserved_range)
        if present.get(value.number) != value.name and not (value.number not in present and reserved):
            yield f"{name}: number {value.number} was {value.name}, is {present.get(value.number, 'not reserved')}"


def _shape(field: Field, message: DescriptorProto) -> tuple[str, ...]:
    """All that a reader must agree with the writer on."""
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
    kind = field.type_name or Field.Type.Name(field.type)
    return (field.name, Field.Label.Name(field.label), kind, oneof)


def _messages(files: FileDescriptorSet) -> Iterator[tuple[str, DescriptorProto]]:
    """Those inside others too, which is what maps are made of."""

    def within(prefix: str, messages: Any) -> Iterator[tuple[str, DescriptorProto]]:
        for message in messages:
            yield f"{prefix}{message.name}", message
            yield from within(f"{prefix}{message.name}.", message.nested_type)

    for file in files.file:
        yield from within("", file.message_type)


def _enums(files: FileDescriptorSet) -> Iterator[tuple[str, descriptor_pb2.EnumDescriptorProto]]:
    for file in files.file:
        yield from ((enum.name, enum) for enum in file.enum_type)
    for name, message in _messages(files):
        yield from ((f"{name}.{enum.name}", enum) for enum in message.enum_type)


def _methods(files: FileDescriptorSet) -> Iterator[tuple[str, tuple[str, str, bool, bool]]]:
    for file in files.file:
        for service in file.service:
            for one in service.method:
                shape = (one.input_type, one.output_type, one.client_streaming, one.server_streaming)
                yield f"{file.package}.{service.name}/{one.name}", shape
