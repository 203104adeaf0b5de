"""What the store holds is believed only where every byte of it says what is expected."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from specdec.lm.exchange import BlockKey, block_key
from specdec.lm.network import BLOCK
from target_service.kv_tier.block_format import VERSION, BlockRefused, unpack
from tests.target_service.kv_tier.blocks import sealed

IDENTITY = "f00d, native, 2 layers x 2 x 1 heads x 8 of float32, blocks of 32"
CONTENT = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)


def key(seed: int = 0, parent: bytes = bytes(16)) -> BlockKey:
    return block_key(parent, np.random.default_rng(seed).integers(0, 97, BLOCK).astype(np.uint32))


def refusal(data: bytes, identity: str = IDENTITY, wanted: BlockKey | None = None) -> str:
    with pytest.raises(BlockRefused) as refused:
        unpack(identity, wanted or key(), data)
    return refused.value.reason


def test_a_block_comes_back_as_it_was() -> None:
    assert (unpack(IDENTITY, key(), sealed(IDENTITY, key(), CONTENT)) == CONTENT).all()


@pytest.mark.scenario("B28")
@pytest.mark.parametrize(
    "other",
    [
        IDENTITY.replace("f00d", "beef"),
        IDENTITY.replace("float32", "bfloat16"),
        IDENTITY.replace("1 heads x 8", "2 heads x 4"),
        IDENTITY.replace("native", "torch"),
        IDENTITY + "!",
    ],
)
def test_a_block_of_another_model_dtype_shape_or_layout_is_refused(other: str) -> None:
    """B28: a draft's or another model's keys and values never become the target's, whatever name they lie under."""
    assert refusal(sealed(other, key(), CONTENT)) == "BLOCK_IDENTITY"


@pytest.mark.scenario("B110")
def test_a_block_of_another_context_is_refused_though_its_digest_be_the_same() -> None:
    """B110, a forced collision: the digest is not asked, token ids and the parent's digest are compared."""
    wanted = key()
    for theirs in (key(seed=1), key(parent=bytes([1]) * 16)):
        collided = BlockKey(wanted.digest, theirs.parent, theirs.tokens)
        assert refusal(sealed(IDENTITY, collided, CONTENT), wanted=wanted) == "BLOCK_CONTEXT"


@pytest.mark.scenario("B108")
def test_every_flipped_bit_and_every_missing_byte_is_seen() -> None:
    data = sealed(IDENTITY, key(), CONTENT[:64])
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 1 << (i % 8)
        assert refusal(bytes(damaged)).startswith("BLOCK_")
        assert refusal(data[:i]) == "BLOCK_TRUNCATED"
    assert refusal(data + b"\0") == "BLOCK_TRUNCATED"


def test_a_later_format_is_refused_not_guessed_at() -> None:
    data = bytearray(sealed(IDENTITY, key(), CONTENT))
    data[4] = VERSION + 1
    assert refusal(bytes(data)) == "BLOCK_FORMAT"


def test_sizes_that_lie_are_refused_though_the_checksum_be_right() -> None:
    """Whoever can write the store can make a checksum too; nothing is read beyond what came."""
    data = bytearray(sealed(IDENTITY, key(), CONTENT))
    data[6:8] = (len(IDENTITY) + 8).to_bytes(2, "little")
    data[8:12] = (int.from_bytes(data[8:12], "little") - 8).to_bytes(4, "little")
    data[16:20] = zlib.crc32(data[20:]).to_bytes(4, "little")
    assert refusal(bytes(data)) == "BLOCK_IDENTITY"
