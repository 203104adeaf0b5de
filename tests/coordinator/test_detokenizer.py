"""Streamed text is the text of the ids, however they come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.detokenizer import OutputText
from coordinator.token_pieces import TokenPieces
from tests.toy_tokenizers import BOS_ID, KINDS, Kind, toy_tokenizer, toy_vocab_size

TOKENIZERS = {kind: toy_tokenizer(kind) for kind in KINDS}
PIECES = {kind: TokenPieces(TOKENIZERS[kind]) for kind in KINDS}
MANY_BYTES = "안녕하세요, 세계! 🙂👨\u200d👩\u200d👧\u200d👦 é 𝔘 ok"


def blocks(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(c for c in cuts if c <= len(ids)), len(ids)]
    return [ids[a:b] for a, b in pairwise(bounds)]


def streamed(kind: Kind, context: list[int], parts: list[list[int]]) -> str:
    output = OutputText(PIECES[kind], context)
    return "".join([*(text for part in parts for text in output.push(part)), output.finish()])


def whole(kind: Kind, ids: list[int]) -> str:
    """All at once: no state, no blocks."""
    return PIECES[kind].join(ids).decode("utf-8", "replace")


def decoded_alone(kind: Kind, parts: list[list[int]]) -> str:
    """The fault that B63 and B65 report: each block decoded by itself."""
    return "".join(TOKENIZERS[kind].decode(part, skip_special_tokens=True) for part in parts)


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, deadline=None)
@given(data=st.data())
def test_every_split_into_blocks_gives_the_same_text(kind: Kind, data: st.DataObject) -> None:
    some_ids = st.lists(st.integers(0, toy_vocab_size(kind) - 1), max_size=16)
    context, ids, cuts = data.draw(some_ids), data.draw(some_ids), data.draw(st.lists(st.integers(0, 16)))
    expected = whole(kind, context + ids)[len(whole(kind, context)) :]
    assert streamed(kind, context, blocks(ids, cuts)) == expected


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, deadline=None)
@given(prompt=st.text(max_size=12), answer=st.text(max_size=12))
def test_text_is_the_tokenizers_decode_behind_the_prompt(kind: Kind, prompt: str, answer: str) -> None:
    tokenizer = TOKENIZERS[kind]
    context, ids = tokenizer.encode(prompt).ids, tokenizer.encode(answer, add_special_tokens=False).ids
    expected = tokenizer.decode(context + ids)[len(tokenizer.decode(context)) :]
    assert streamed(kind, context, [[i] for i in ids]) == expected


@pytest.mark.scenario("B63")
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("size", range(1, 6))
def test_characters_whose_bytes_span_blocks_stay_whole(kind: Kind, size: int) -> None:
    """Korean, an emoji and a ZWJ family, cut at every byte: no U+FFFD, nothing lost."""
    ids = TOKENIZERS[kind].encode(MANY_BYTES, add_special_tokens=False).ids
    for first in range(size):
        cuts = list(range(first, len(ids), size))
        parts = blocks(ids, cuts)
        assert streamed(kind, [BOS_ID], parts) == TOKENIZERS[kind].decode(ids).removeprefix(" ")
        assert "\ufffd" not in streamed(kind, [BOS_ID], parts)
    assert "\ufffd" in decoded_alone(kind, [[i] for i in ids])


@pytest.mark.scenario("B65")
@pytest.mark.parametrize("kind", ["word_start", "byte_fallback"])
def test_spaces_between_blocks_survive(kind: Kind) -> None:
    """Word-start marks in blocks of 1 to 8 tokens."""
    ids = TOKENIZERS[kind].encode("leading logs and the x and logs", add_special_tokens=False).ids
    for size in range(1, 9):
        parts = blocks(ids, list(range(0, len(ids), size)))
        assert streamed(kind, [BOS_ID], parts) == "leading logs and the x and logs"
    assert "logsand" in decoded_alone(kind, [[i] for i in ids])


@pytest.mark.scenario("B66")
@pytest.mark.parametrize("prompt, text", [("the", "  leading x"), ("the ", "  leading x"), ("", " leading x")])
def test_the_leading_space_is_dropped_at_the_start_of_a_text_only(prompt: str, text: str) -> None:
    """First tokens "▁", "▁leading", "▁x", behind a prompt, a prompt that ends with a space, and none."""
    tokenizer = TOKENIZERS["word_start"]
    context = tokenizer.encode(prompt).ids
    ids = [tokenizer.get_vocab()[piece] for piece in ("▁", "▁leading", "▁x")]
    assert tokenizer.decode(context + ids)[len(tokenizer.decode(context)) :] == text
    assert streamed("word_start", context, [[i] for i in ids]) == text


def test_a_character_that_the_context_began_belongs_to_the_context() -> None:
    token = TOKENIZERS["byte_level"].encode("€ 🙂x").ids
    euro, rest = token[:3], token[3:]
    assert streamed("byte_level", euro[:2], [[*euro[2:], *rest]]) == " 🙂x"
    assert streamed("byte_level", euro[:2], [rest]) == " 🙂x"


def test_an_incomplete_character_at_the_end_is_flushed_once() -> None:
    ids = TOKENIZERS["byte_level"].encode("a🙂").ids
    output = OutputText(PIECES["byte_level"], [])
    assert "".join(output.push(ids[:-1])) == "a"
    assert (output.finish(), output.finish()) == ("\ufffd", "")


def test_each_token_id_is_decoded_once_however_long_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = TokenPieces(toy_tokenizer("word_start"))
    calls: list[list[int]] = []
    decode = pieces._decode

    def counted(token_ids: list[int]) -> str:
        calls.append(token_ids)
        return decode(token_ids)

    monkeypatch.setattr(pieces, "_decode", counted)
    ids = toy_tokenizer("word_start").encode("the logs and the x").ids * 500
    OutputText(pieces, [BOS_ID]).push(ids)
    assert len(calls) <= 2 * len(set(ids)) + 1
    assert max(map(len, calls)) <= 2
