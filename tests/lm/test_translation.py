"""Contexts of one tokenizer in the ids of another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdec.core.errors import ConfigError
from specdec.lm.translation import TranslatedContext, Translation, read_tokenizer
from tests.toy_tokenizers import KINDS, save_folder, toy_tokenizer
from tests.trained_tokenizers import byte_level

TEXTS = ("the hello world, he said", "가나다 안녕 🙂 the", "\n\tx  y", "naïve café")
WIDTH = 1 << 20
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def translation() -> Translation:
    return Translation(toy_tokenizer("byte_level"), byte_level(SPECIALS[:1]), WIDTH, WIDTH)


def encoded(text: str) -> list[int]:
    return [int(i) for i in toy_tokenizer("byte_level").encode(text, add_special_tokens=False).ids]


def own(translation: Translation, ids: list[int]) -> list[int]:
    return [int(i) for i in TranslatedContext(translation).update(np.array(ids, dtype=np.uint32))]


@pytest.mark.parametrize("text", TEXTS)
def test_a_translated_context_is_the_same_text(translation: Translation, text: str) -> None:
    assert byte_level(SPECIALS[:1]).decode(own(translation, encoded(text))) == text


def test_shared_tokens_are_those_of_equal_strings_and_become_their_own_ids(translation: Translation) -> None:
    target, drafter = toy_tokenizer("byte_level"), byte_level(SPECIALS[:1])
    strings = set(target.get_vocab()) & set(drafter.get_vocab())
    shared = translation.shared
    assert {target.id_to_token(int(i)) for i in shared.target_ids} == strings
    assert [target.id_to_token(int(i)) for i in shared.target_ids] == [
        drafter.id_to_token(int(i)) for i in shared.own_ids
    ]
    assert 256 < len(shared) < min(target.get_vocab_size(), drafter.get_vocab_size())
    assert (shared.target_ids != shared.own_ids).any(), "equal ids would hide a map that is not used"
    for target_id, own_id in zip(shared.target_ids.tolist(), shared.own_ids.tolist(), strict=True):
        assert translation.token(target_id) == (own_id,)


def test_a_token_that_is_not_shared_is_spelled_out_special_ones_as_their_text(translation: Translation) -> None:
    target, drafter = toy_tokenizer("byte_level"), byte_level(SPECIALS[:1])
    spelled = [i for i in range(target.get_vocab_size()) if i not in set(translation.shared.target_ids.tolist())]
    assert {target.id_to_token(i) for i in spelled} > {"<|im_start|>", "<|im_end|>"}
    for token_id in spelled:
        pieces = [drafter.id_to_token(i) or "" for i in translation.token(token_id)]
        assert "".join(pieces) == target.id_to_token(token_id) and len(pieces) > 1


def test_half_a_character_is_translated_byte_by_byte(translation: Translation) -> None:
    [half, *_] = [i for i in encoded("안") if toy_tokenizer("byte_level").id_to_token(i) == "ìķ"]
    assert [byte_level(SPECIALS[:1]).id_to_token(i) for i in translation.token(half)] == ["ì", "ķ"]


def test_ids_that_nobody_knows_are_left_out(translation: Translation) -> None:
    assert translation.token(1_000_000) == ()
    assert own(translation, [1_000_000]) == []


def test_any_growth_and_rollback_gives_what_a_fresh_translation_gives(translation: Translation) -> None:
    """...and a prefix of the context becomes a prefix."""
    rng, translated = np.random.default_rng(3), TranslatedContext(translation)
    context = np.zeros(0, dtype=np.uint32)
    for _ in range(200):
        kept = context[: rng.integers(len(context) + 1)]
        grown = rng.integers(0, toy_tokenizer("byte_level").get_vocab_size() + 3, rng.integers(6)).astype(np.uint32)
        context = np.concatenate([kept, grown])
        ids = translated.update(context).tolist()
        assert ids == own(translation, context.tolist())
        assert own(translation, kept.tolist()) == ids[: len(own(translation, kept.tolist()))]


def test_only_what_is_new_is_translated(translation: Translation, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    token = Translation.token

    def watched(self: Translation, token_id: int) -> tuple[int, ...]:
        asked.append(token_id)
        return token(self, token_id)

    monkeypatch.setattr(Translation, "token", watched)
    translated = TranslatedContext(translation)
    for context in ([5, 6, 7], [5, 6, 7, 8], [5, 6, 9], [5, 6]):
        translated.update(np.array(context, dtype=np.uint32))
    assert asked == [5, 6, 7, 8, 9]


def test_only_byte_level_tokenizers_can_be_compared(tmp_path: Path) -> None:
    for kind in KINDS:
        folder = str(save_folder(tmp_path / kind, kind))
        if kind == "byte_level":
            assert read_tokenizer(folder).get_vocab() == toy_tokenizer(kind).get_vocab()
            continue
        with pytest.raises(ConfigError, match="not byte-level"):
            read_tokenizer(folder)
    (tmp_path / "bare").mkdir()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        read_tokenizer(str(tmp_path / "bare"))


@pytest.mark.scenario("B31")
def test_no_token_beyond_either_vocabulary_is_shared() -> None:
    target, drafter = toy_tokenizer("byte_level"), byte_level(SPECIALS[:1])
    shared = Translation(target, drafter, 100, 90).shared
    assert shared.target_ids.max() < 100 and shared.own_ids.max() < 90
    with pytest.raises(ConfigError, match="no token in common"):
        Translation(target, drafter, 0, 90)
