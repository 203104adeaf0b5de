from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from draft_service.training.corpus import HELD_OUT, Document, read_corpus, split
from specdec.core.errors import ConfigError


@pytest.fixture(scope="module")
def tokenizer(target_folder: Path) -> object:
    return AutoTokenizer.from_pretrained(target_folder)


def lines(folder: Path, *fields: object) -> Path:
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in fields))
    return file


def learned_text(document: Document, tokenizer: object) -> str:
    return tokenizer.decode(document.ids[document.learned].tolist())  # type: ignore[attr-defined,no-any-return]


def test_of_a_chat_the_answers_and_what_ends_them_are_learned(tokenizer: object, tmp_path: Path) -> None:
    turns = [("user", "the hello"), ("assistant", "in the"), ("user", "a log"), ("assistant", "hell")]
    chat = {"messages": [{"role": role, "content": content} for role, content in turns]}
    [document] = read_corpus(lines(tmp_path, chat), tokenizer, 512)
    assert learned_text(document, tokenizer) == "in the<|im_end|>\nhell<|im_end|>\n"
    assert "the hello" in tokenizer.decode(document.ids.tolist())  # type: ignore[attr-defined]


def test_of_a_text_all_but_its_first_token_is_learned(tokenizer: object, tmp_path: Path) -> None:
    plain = tmp_path / "book.txt"
    plain.write_text("the hello in a log" * 20)
    for file in (lines(tmp_path, {"text": "the hello in a log" * 20}), plain):
        documents = read_corpus(file, tokenizer, 16)
        assert len(documents) > 2
        for document in documents:
            assert len(document.ids) <= 16
            assert document.learned.tolist() == [False] + [True] * (len(document.ids) - 1)


def test_what_the_target_wrote_is_read_as_it_lies_there(tokenizer: object, tmp_path: Path) -> None:
    file = lines(tmp_path, {"ids": [5, 6, 7, 8], "answer": 2, "temperature": 0.6})
    file.write_text(file.read_text() + '{"ids": [1, 2')  # a line that is being written
    [document] = read_corpus(file, tokenizer, 512)
    assert document.ids.tolist() == [5, 6, 7, 8]
    assert document.learned.tolist() == [False, False, True, True]
    assert document.temperature == 0.6


@pytest.mark.parametrize("fields", [{"prompt": "a"}, [1], {"text": 3}])
def test_a_line_of_another_kind_is_named(fields: object, tokenizer: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        read_corpus(lines(tmp_path, {"text": "the hello"}, fields), tokenizer, 512)


def test_a_missing_file_and_an_empty_one_are_errors(tokenizer: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_corpus(tmp_path / "none.jsonl", tokenizer, 512)
    with pytest.raises(ConfigError, match="no document"):
        read_corpus(lines(tmp_path), tokenizer, 512)


def test_what_is_held_out_stays_held_out_when_the_data_grow() -> None:
    def documents(count: int) -> list[Document]:
        return [Document(np.arange(3, dtype=np.uint32), np.ones(3, np.bool_))] * count

    train, held = split(documents(3 * HELD_OUT))
    assert sorted(train + held) == list(range(3 * HELD_OUT))
    assert len(held) == 3
    more, more_held = split(documents(5 * HELD_OUT))
    assert not set(held) & set(more)
    assert set(held) <= set(more_held)
