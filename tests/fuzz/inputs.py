"""Malformed messages: noise, sound messages that were damaged, and well-formed ones that mean nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

MOST = 3  # of what is repeated
WORDS = ("", "x", "ngram", "rejection", "\x00", "ü" * 40, "a" * 3000, "../../etc", "%s%n", "session")
INTEGERS = (0, 1, 2, 7, 31, 32, 255, 256, 65535, 2**31 - 1, 2**32 - 1)
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"))


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(200))


def damaged(rng: random.Random, sound: bytes) -> bytes:
    """Bits flipped, pieces cut out, doubled or put in."""
    data = bytearray(sound)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            data[at:at] = data[at : at + rng.randint(1, 16)]
    return bytes(data)


def meaningless(rng: random.Random, kind: Any, depth: int = 0) -> Any:
    """Any value in any field, however little they go together."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.5 or (depth > 3 and field.message_type):
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(rng.randint(0, MOST)):
                if field.message_type:
                    values.add().CopyFrom(meaningless(rng, GetMessageClass(field.message_type), depth + 1))
                else:
                    values.append(_value(rng, field))
        elif field.message_type:
            getattr(message, field.name).CopyFrom(meaningless(rng, GetMessageClass(field.message_type), depth + 1))
        else:
            setattr(message, field.name, _value(rng, field))
    return message


def _value(rng: random.Random, field: Any) -> Any:
    kinds: dict[int, Callable[[], Any]] = {
        FieldDescriptor.TYPE_BYTES: lambda: rng.randbytes(rng.choice((0, 1, 4, 8, 12, 60))),
        FieldDescriptor.TYPE_STRING: lambda: rng.choice(WORDS),
        FieldDescriptor.TYPE_BOOL: lambda: rng.random() < 0.5,
        FieldDescriptor.TYPE_DOUBLE: lambda: rng.choice(FLOATS),
        FieldDescriptor.TYPE_FLOAT: lambda: rng.choice(FLOATS),
        FieldDescriptor.TYPE_ENUM: lambda: rng.randrange(5),
        FieldDescriptor.TYPE_INT64: lambda: rng.choice((-1, -(2**40), *INTEGERS)),
        FieldDescriptor.TYPE_UINT64: lambda: rng.choice((2**64 - 1, *INTEGERS)),
        FieldDescriptor.TYPE_UINT32: lambda: rng.choice(INTEGERS),
    }
    return kinds[field.type]()


def one(rng: random.Random, kind: Any, sound: bytes) -> bytes:
    """kind: of the message that the method takes; sound: one that it would serve."""
    way = rng.randrange(4)
    if way == 0:
        return noise(rng)
    if way == 1:
        return damaged(rng, sound)
    made = meaningless(rng, kind)
    if way == 3:  # a sound one with a few fields of nonsense: it gets deeper
        merged = kind.FromString(sound)
        for field, value in made.ListFields():
            if rng.random() < 0.2 and not field.is_repeated and not field.message_type:
                setattr(merged, field.name, value)
        made = merged
    data: bytes = made.SerializeToString()
    return data
