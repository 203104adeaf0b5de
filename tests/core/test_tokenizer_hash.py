"""One hash for all who exchange token ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from specdec.core.tokenizer_hash import tokenizer_hash, tokenizer_vocab_size
from tests.toy_tokenizers import KINDS, Kind, toy_tokenizer, toy_vocab_size


def changed(kind: Kind, change: Callable[[dict[str, Any]], object]) -> str:
    spec = json.loads(toy_tokenizer(kind).to_str())
    change(spec)
    return json.dumps(spec)


def toy_hash(kind: Kind) -> str:
    return tokenizer_hash(toy_tokenizer(kind).to_str())


def swap_first_two_letters(spec: dict[str, Any]) -> None:
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, list):
        vocab[10], vocab[11] = vocab[11], vocab[10]
    else:
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def add(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        for name in names:
            size = tokenizer_vocab_size(json.dumps(spec))
            spec["added_tokens"].append({"id": size, "content": name, "special": True})

    return change


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_define_ids_does_not_enter_the_hash(kind: Kind) -> None:
    def change(spec: dict[str, Any]) -> None:
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation"):
            spec[part] = None
        for token in spec["added_tokens"]:
            token["special"] = False

    assert tokenizer_hash(changed(kind, change)) == toy_hash(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_loaded_and_written_again_keeps_its_hash(kind: Kind) -> None:
    assert tokenizer_hash(Tokenizer.from_str(toy_tokenizer(kind).to_str()).to_str()) == toy_hash(kind)


def test_merges_written_in_the_older_form_are_the_same_merges() -> None:
    def change(spec: dict[str, Any]) -> None:
        spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]

    assert tokenizer_hash(changed("byte_level", change)) == toy_hash("byte_level")


def test_it_does_not_matter_in_which_list_a_token_stands() -> None:
    def change(spec: dict[str, Any]) -> None:
        for token in spec["added_tokens"]:
            spec["model"]["vocab"].pop(token["content"], None)

    assert tokenizer_hash(changed("byte_level", change)) == toy_hash("byte_level")


@pytest.mark.parametrize("kind", KINDS)
def test_two_tokens_with_swapped_ids_make_another_tokenizer(kind: Kind) -> None:
    assert tokenizer_hash(changed(kind, swap_first_two_letters)) != toy_hash(kind)


def test_the_order_of_merges_and_the_scores_of_pieces_enter_the_hash() -> None:
    def reverse(spec: dict[str, Any]) -> None:
        spec["model"]["merges"].reverse()

    def rescore(spec: dict[str, Any]) -> None:
        spec["model"]["vocab"][10][1] -= 1.0

    assert tokenizer_hash(changed("byte_level", reverse)) != toy_hash("byte_level")
    assert tokenizer_hash(changed("word_start", rescore)) != toy_hash("word_start")


@pytest.mark.scenario("B34")
def test_tokenizers_that_differ_in_unused_reserved_names_alone_are_the_same() -> None:
    """A tightened check must not turn down a pair whose reserved names differ; a token with a meaning
    counts."""
    reserved = add("<|reserved_special_token_0|>", "<unused7>", "[unused3]", "<reserved_1>", "<|dummy_12|>")
    assert tokenizer_hash(changed("byte_level", reserved)) == toy_hash("byte_level")
    for name in ("<|tool_call|>", "<|fim_prefix|>", "reserved", "<|endoftext2|>"):
        assert tokenizer_hash(changed("byte_level", add(name))) != toy_hash("byte_level"), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_ends_behind_the_largest_id_added_tokens_included(kind: Kind) -> None:
    size = toy_vocab_size(kind)
    assert tokenizer_vocab_size(toy_tokenizer(kind).to_str()) == size

    def with_hole(spec: dict[str, Any]) -> None:
        spec["added_tokens"].append({"id": size + 5, "content": "<|far|>", "special": True})

    assert tokenizer_vocab_size(changed(kind, with_hole)) == size + 6


@pytest.mark.parametrize("text", ["{}", "[]", '{"model": {}}', "no json"])
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        tokenizer_hash(text)
