"""Model folders, encoding, chat turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.session import ChatMessage
from coordinator.tokenizer import TextCodec
from specdec.core.errors import ConfigError, InvalidArgument
from specdec.core.tokenizer_hash import tokenizer_hash
from tests.toy_tokenizers import BOS_ID, EOS_ID, KINDS, Kind, save_folder, toy_tokenizer, toy_vocab_size

OLD = [ChatMessage("user", "hello")]
NEW = [ChatMessage("user", "ab")]


@pytest.fixture(scope="module")
def codecs(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, TextCodec]:
    return {kind: TextCodec.load(str(save_folder(tmp_path_factory.mktemp(kind), kind))) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_size_hash_and_eos(kind: Kind, codecs: dict[Kind, TextCodec]) -> None:
    codec = codecs[kind]
    assert codec.vocab_size == toy_vocab_size(kind)
    assert codec.tokenizer_hash == tokenizer_hash(toy_tokenizer(kind).to_str())
    assert codec.eos_ids == (EOS_ID,)


@pytest.mark.parametrize(
    "config, generation, eos_ids",
    [
        ({"eos_token_id": 5}, {"eos_token_id": [2, 3]}, (2, 3)),
        ({"eos_token_id": 5}, {}, (5,)),
        ({"text_config": {"eos_token_id": [6]}}, {}, (6,)),
        ({}, {}, ()),
        ({"eos_token_id": None}, {"eos_token_id": None}, ()),
    ],
)
def test_eos_comes_from_generation_config_then_config_and_is_never_invented(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any], eos_ids: tuple[int, ...]
) -> None:
    folder = save_folder(tmp_path, "byte_level", config=config, generation_config=generation)
    assert TextCodec.load(str(folder)).eos_ids == eos_ids


def test_ids_that_the_model_has_no_row_for_are_not_in_the_vocabulary(tmp_path: Path) -> None:
    for width, size in ((1000, toy_vocab_size("byte_level")), (100, 100)):
        folder = save_folder(tmp_path, "byte_level", config={"vocab_size": width})
        assert TextCodec.load(str(folder)).vocab_size == size


@pytest.mark.parametrize("missing", ["tokenizer.json", "config.json"])
def test_a_folder_without_a_needed_file_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    (save_folder(tmp_path, "byte_level") / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        TextCodec.load(str(tmp_path))


@pytest.mark.parametrize("name, content", [("tokenizer.json", "{}"), ("config.json", "{"), ("config.json", "[]")])
def test_a_broken_file_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (save_folder(tmp_path, "byte_level") / name).write_text(content)
    with pytest.raises(ConfigError, match=name):
        TextCodec.load(str(tmp_path))


def test_an_eos_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level", generation_config={"eos_token_id": 9999})
    with pytest.raises(ConfigError, match="eos_token_id"):
        TextCodec.load(str(folder))


@pytest.mark.parametrize("name", ["./nowhere", "~nobody-has-this", "a/b/c"])
def test_a_path_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        TextCodec.load(name)


def test_a_hub_name_is_resolved_offline_from_the_cache_or_refused(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--someone--toy"
    commit = "0" * 40
    save_folder(repository / "snapshots" / commit, "byte_level")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    code = (
        "import sys; from coordinator.tokenizer import TextCodec; from specdec.core.errors import ConfigError\n"
        "print(TextCodec.load('someone/toy').vocab_size)\n"
        "try: TextCodec.load('someone/else')\n"
        "except ConfigError as error: print(error.field, error.value)\n"
        "print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str(toy_vocab_size("byte_level")), "model someone/else", "False"], done.stderr


@pytest.mark.parametrize("kind, bos", [("byte_level", []), ("word_start", [BOS_ID]), ("byte_fallback", [BOS_ID])])
def test_bos_is_added_where_asked_and_where_the_tokenizer_has_one(
    kind: Kind, bos: list[int], codecs: dict[Kind, TextCodec]
) -> None:
    codec = codecs[kind]
    assert codec.encode("the ab", add_bos=True) == bos + codec.encode("the ab", add_bos=False)


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, deadline=None)
@given(first=st.text("ab the\n.", min_size=1, max_size=8), rest=st.text("ab the\n.", max_size=8))
def test_a_continuation_is_the_text_and_nothing_else(
    kind: Kind, first: str, rest: str, codecs: dict[Kind, TextCodec]
) -> None:
    codec = codecs[kind]
    context = codec.encode(first, add_bos=True)
    assert codec.decode(context + codec.encode_continuation(rest)) == codec.decode(context) + rest


def test_an_older_files_truncation_and_padding_are_not_used(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level")
    tokenizer = toy_tokenizer("byte_level")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(TextCodec.load(str(folder)).encode("abcdefgh" * 2, add_bos=True)) == len("abcdefgh" * 2) - 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("finished", [True, False])
def test_context_and_new_turn_are_the_whole_chat(kind: Kind, finished: bool, codecs: dict[Kind, TextCodec]) -> None:
    """Ended by EOS, only the rest of the turn is added; cut by length, the template's end of turn too."""
    codec = codecs[kind]
    context = codec.chat_prompt_ids(OLD) + codec.encode_continuation(" the x")
    if finished:
        context.append(EOS_ID)
    added = codec.next_turn_ids(OLD, " the x", context, NEW, finished)
    assert added is not None
    assert context + added == codec.chat_prompt_ids([*OLD, ChatMessage("assistant", " the x"), *NEW])


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_turn_brings_no_second_bos(kind: Kind, codecs: dict[Kind, TextCodec]) -> None:
    codec = codecs[kind]
    if kind != "byte_level":
        context = [*codec.chat_prompt_ids(OLD), *codec.encode_continuation(" x"), EOS_ID]
        added = codec.next_turn_ids(OLD, " x", context, NEW, answer_finished=True)
        assert added is not None and BOS_ID not in added


def test_an_answer_that_ended_by_a_stop_string_is_encoded_anew(codecs: dict[Kind, TextCodec]) -> None:
    codec = codecs["byte_level"]
    context = codec.chat_prompt_ids(OLD) + codec.encode("the stop", add_bos=False)
    assert codec.next_turn_ids(OLD, "the ", context, NEW, answer_finished=True) is None


def test_a_model_without_a_template_refuses_chats_and_nothing_else(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    codec = TextCodec.load(str(folder))
    assert codec.encode("ab", add_bos=True)
    with pytest.raises(InvalidArgument, match="no chat template") as caught:
        codec.chat_prompt_ids(OLD)
    assert caught.value.field == "chat"


def test_a_template_file_wins_over_the_configuration_and_named_ones_have_a_default(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "listed"}, {"name": "rag", "template": "other"}]
    folder = save_folder(tmp_path, "byte_level")
    config = {"chat_template": named, "eos_token": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert TextCodec.load(str(folder)).render(OLD, True) == "listed"
    (folder / "chat_template.jinja").write_text("{{ eos_token }}")
    assert TextCodec.load(str(folder)).render(OLD, True) == "<|im_end|>"
