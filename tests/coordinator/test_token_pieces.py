"""The bytes of each token, against the tokenizer's own decode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from coordinator.token_pieces import TokenPieces
from specdec.core.errors import ConfigError
from tests.toy_tokenizers import KINDS, Kind, toy_tokenizer, toy_vocab_size

PIECES = {kind: TokenPieces(toy_tokenizer(kind)) for kind in KINDS}
TOKENIZERS = {kind: toy_tokenizer(kind) for kind in KINDS}


def text_of(kind: Kind, token_ids: list[int]) -> str:
    return PIECES[kind].join(token_ids).decode("utf-8", "replace")


@pytest.mark.parametrize("kind", ["byte_level", "word_start"])
@settings(derandomize=True, deadline=None)
@given(data=st.data())
def test_joined_pieces_are_the_tokenizers_decode_of_any_ids(kind: Kind, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, toy_vocab_size(kind) - 1), max_size=24))
    assert text_of(kind, ids) == TOKENIZERS[kind].decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, deadline=None)
@given(text=st.text(max_size=30))
def test_joined_pieces_are_the_tokenizers_decode_of_any_text(kind: Kind, text: str) -> None:
    ids = TOKENIZERS[kind].encode(text).ids
    assert text_of(kind, ids) == TOKENIZERS[kind].decode(ids, skip_special_tokens=True)


def test_byte_tokens_that_are_no_character_do_not_spoil_their_neighbours() -> None:
    vocab = TOKENIZERS["byte_fallback"].get_vocab()
    ids = [vocab[f"<0x{b:02X}>"] for b in (0xE2, 0x82, 0xAC, 0xF0)]
    assert text_of("byte_fallback", ids) == "€\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_ids_without_a_token_are_silent(kind: Kind) -> None:
    pieces = PIECES[kind]
    for token_id in (0, 1, 2, toy_vocab_size(kind)):
        assert pieces.silent(token_id) and pieces.piece(token_id) == b""


def test_a_tokenizer_whose_tokens_depend_on_what_follows_is_refused() -> None:
    """This decoder writes a space behind a word's end, but not behind the last."""
    vocab = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyzHI你好ö🙂'(),<>!")}
    vocab |= {f"{c}</w>": len(vocab) + i for i, c in enumerate(vocab)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    with pytest.raises(ConfigError, match="cannot be streamed"):
        TokenPieces(tokenizer)
