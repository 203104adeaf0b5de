"""Small real tokenizers, one of each kind that models use, and model folders without weights around them.

* byte_level: BPE over 256 bytes, some tokens holding a part of a character; no BOS (GPT-2, Llama 3, Qwen,
  SmolLM2)
* word_start: Unigram pieces, words marked by a leading "▁"; BOS (SentencePiece without bytes)
* byte_fallback: BPE over letters, unknown characters as byte tokens, a space put before a text; BOS (Llama 2,
  Mistral)

Ids 0, 1, 2 are <unk>, BOS and EOS (byte_level: <|endoftext|>, <|im_start|>, <|im_end|>)."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

Kind = Literal["byte_level", "word_start", "byte_fallback"]
KINDS: tuple[Kind, ...] = ("byte_level", "word_start", "byte_fallback")
BOS_ID = 1
EOS_ID = 2
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN_CHAT = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['role'] + ':' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
_SPECIALS: dict[Kind, tuple[str, ...]] = {
    "byte_level": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "word_start": ("<unk>", "<s>", "</s>"),
    "byte_fallback": ("<unk>", "<s>", "</s>"),
}
_MERGES = ("h e", "t he", "i n", "Ġ the", "Ġ a", "l l", "he ll", "hell o", "a b", "ì ķ", "ð Ł", "ðŁ ĺ")
_WORDS = ("▁leading", "▁logs", "▁and", "▁the", "▁x", "ing", "log", "and", "▁user", "▁assistant", "ll", "he")


def save_folder(
    folder: str | Path,
    kind: Kind,
    *,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
) -> Path:
    """Writes tokenizer.json and tokenizer_config.json into `folder`, made if need be, and returns it.
    config.json and generation_config.json that a model has written there are kept, unless their contents are
    given."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = toy_tokenizer(kind)
    tokenizer.save(str(path / "tokenizer.json"))
    unk, bos, eos = _SPECIALS[kind]
    default_template = CHATML if kind == "byte_level" else PLAIN_CHAT
    names = {"unk_token": unk, "bos_token": bos, "eos_token": eos, "chat_template": chat_template or default_template}
    _write(path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    sizes = {"model_type": "llama", "vocab_size": toy_vocab_size(kind)}
    for name, given, default in (
        ("config.json", config, {**sizes, **ids}),
        ("generation_config.json", generation_config, ids),
    ):
        if given is not None or not (path / name).exists():
            _write(path / name, default if given is None else given)
    return path


def toy_vocab_size(kind: Kind) -> int:
    """Ids that the tokenizer knows: the vocab_size of a tiny model to go with it."""
    return int(toy_tokenizer(kind).get_vocab_size(with_added_tokens=True))


def toy_tokenizer(kind: Kind) -> Tokenizer:
    """A new object each time."""
    return Tokenizer.from_str(_serialized(kind))


@cache
def _serialized(kind: Kind) -> str:
    build = {"byte_level": _byte_level, "word_start": _word_start, "byte_fallback": _byte_fallback}[kind]
    tokenizer = build()
    specials = [AddedToken(token, special=True, normalized=False) for token in _SPECIALS[kind]]
    tokenizer.add_special_tokens(specials)
    if kind != "byte_level":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS_ID)]
        )
    text: str = tokenizer.to_str()
    return text


def _byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _usable(_MERGES, alphabet)
    vocab = _ids([*_SPECIALS["byte_level"], *alphabet, *("".join(pair) for pair in merges)])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _word_start() -> Tokenizer:
    letters = ["▁", *string.ascii_letters, *string.digits, *string.punctuation, "\n", "é", "안"]
    pieces = [*_SPECIALS["word_start"], *letters, *_WORDS]
    scores = [0.0 if len(p) > 1 else -10.0 for p in pieces]
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    return tokenizer


def _byte_fallback() -> Tokenizer:
    letters = ["▁", *string.ascii_letters, *string.digits, *string.punctuation, "é"]
    merges = _usable(("h e", "t he", "▁ the", "▁ a", "l l", "he ll", "▁ x", "i n"), letters)
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    tokens = [*_SPECIALS["byte_fallback"], *byte_tokens, *letters, *("".join(pair) for pair in merges)]
    model = models.BPE(vocab=_ids(tokens), merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _ids(tokens: list[str]) -> dict[str, int]:
    assert len(set(tokens)) == len(tokens), "a token stands twice"
    return {token: i for i, token in enumerate(tokens)}


def _usable(merges: tuple[str, ...], alphabet: list[str]) -> list[tuple[str, str]]:
    """The merges as pairs, each of parts that exist before it."""
    known, pairs = set(alphabet), []
    for merge in merges:
        left, right = merge.split(" ")
        assert {left, right} <= known, f"merge {merge!r} needs parts that come later"
        pairs.append((left, right))
        known.add(left + right)
    return pairs


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
