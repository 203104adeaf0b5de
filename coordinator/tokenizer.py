"""Text to token ids and back, by the files of a model folder alone: no model code, no transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from coordinator.chat_template import ChatTemplate
from coordinator.generation_defaults import GenerationDefaults
from coordinator.session import ChatMessage
from coordinator.token_pieces import TokenPieces
from specdec.core.errors import ConfigError, InvalidArgument
from specdec.core.tokenizer_hash import tokenizer_hash, tokenizer_vocab_size
from specdec.core.tree import Ids

_REQUIRED = ("tokenizer.json", "config.json")
_OPTIONAL = (
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class TextCodec:
    """vocab_size: the tokenizer's real size, added tokens included (not the padded width of an embedding).
    tokenizer_hash: equal to the replicas' (specdec.core.tokenizer_hash). eos_ids: what generation_config
    names, else config, else nothing. pieces: the bytes of each token, for streaming. template: None where the
    model has none."""

    tokenizer: Tokenizer
    vocab_size: int
    tokenizer_hash: str
    eos_ids: tuple[int, ...]
    defaults: GenerationDefaults
    pieces: TokenPieces
    template: ChatTemplate | None

    @staticmethod
    def load(folder: str, now: Callable[[], datetime] = datetime.now) -> TextCodec:
        """From a model folder, or a hub name (its small files are fetched; HF_HUB_OFFLINE is respected).
        `now`: the clock of templates that print the date. Raises ConfigError where a file is missing or
        cannot be used."""
        path = _folder(folder)
        for name in _REQUIRED:
            if not (path / name).is_file():
                raise ConfigError("model", folder, f"has no {name}: give a folder or hub name that holds one")
        serialized = (path / "tokenizer.json").read_text(encoding="utf-8")
        try:
            tokenizer = Tokenizer.from_str(serialized)
        except Exception as error:  # the binding raises nothing narrower
            raise ConfigError("model", folder, f"its tokenizer.json cannot be read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        generation = _read_json(path / "generation_config.json")
        config = _read_json(path / "config.json")
        vocab_size = int(min(tokenizer_vocab_size(serialized), _embedding_width(config)))
        return TextCodec(
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            tokenizer_hash=tokenizer_hash(serialized),
            eos_ids=_eos_ids(generation, config, vocab_size),
            defaults=GenerationDefaults.read(generation),
            pieces=TokenPieces(tokenizer),
            template=_template(path, now),
        )

    def encode(self, text: str, add_bos: bool) -> list[int]:
        """`add_bos`: with the special tokens that the tokenizer puts around a text of its own (none, for
        many)."""
        return list(self.tokenizer.encode(text, add_special_tokens=add_bos).ids)

    def encode_continuation(self, text: str, behind: str = "\n") -> list[int]:
        """Ids of a text that stands behind other text: no BOS, and no space put before its first word.

        behind: what it stands behind, where that is known and a token of its own (an end of turn)."""
        before = self.encode(behind, add_bos=False)
        ids = self.encode(behind + text, add_bos=False)
        # Where the two merge, the tokenizer is byte-level and adds no space anyway.
        return ids[len(before) :] if ids[: len(before)] == before else self.encode(text, add_bos=False)

    def decode(self, token_ids: Sequence[int] | Ids) -> str:
        """The text of the ids, special tokens left out; U+FFFD for what is not UTF-8. What streaming adds up
        to."""
        return self.pieces.join(int(i) for i in token_ids).decode("utf-8", "replace")

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool) -> str:
        """Raises InvalidArgument (field `chat`) where the model has no template or its template refuses."""
        return self._chat_template.render(messages, add_generation_prompt)

    def chat_prompt_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of a whole chat up to the opening of the next answer. BOS is the template's business."""
        return self.encode(self.render(messages, add_generation_prompt=True), add_bos=False)

    def next_turn_ids(
        self,
        old_messages: Sequence[ChatMessage],
        answer_text: str,
        context_ids: Sequence[int] | Ids,
        new_messages: Sequence[ChatMessage],
        answer_finished: bool,
    ) -> list[int] | None:
        """What the next turn appends to `context_ids` (old messages and answer). answer_finished: the model
        ended the answer itself, so that the context ends with an end-of-turn token; a turn cut by length gets
        the template's.

        None: the context is no prefix of the chat as the template writes it now (it rewrites history, or the
        answer ended with a stop string or another token than the template's): encode the whole chat and use
        tokens[offset:]. Raises InvalidArgument (field `chat`)."""
        ended_by = None
        if answer_finished:
            ended_by = self.tokenizer.decode([int(context_ids[-1])], skip_special_tokens=False)
        text = self._chat_template.continuation(old_messages, answer_text, new_messages, ended_by)
        return None if text is None else self.encode_continuation(text, ended_by or "\n")

    @property
    def _chat_template(self) -> ChatTemplate:
        if self.template is None:
            raise InvalidArgument("chat", "messages", "the model has no chat template: send text or token_ids")
        return self.template


def _folder(name: str) -> Path:
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ConfigError("model", name, "is not a folder")
    from huggingface_hub import snapshot_download  # slow to import, and only hub names need it
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=[*_REQUIRED, *_OPTIONAL]))
    except (HFValidationError, OSError) as error:
        raise ConfigError("model", name, f"is neither a folder nor a hub name to be had: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """{} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(path.name, str(path), f"is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(path.name, str(path), "must hold an object")
    return content


def _embedding_width(config: Mapping[str, Any]) -> float:
    """Ids that the model has a row for: more than the tokenizer knows (padding), or, rarely, fewer."""
    return config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or math.inf


def _eos_ids(generation: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    text_config = config.get("text_config") or {}
    for source in (generation, config, text_config):
        ids = source.get("eos_token_id")
        if ids is not None:
            ids = (ids,) if isinstance(ids, int) else tuple(ids)
            if not all(isinstance(i, int) and 0 <= i < vocab_size for i in ids):
                raise ConfigError("eos_token_id", ids, f"must be ids in [0, {vocab_size})")
            return ids
    return ()


def _template(path: Path, now: Callable[[], datetime]) -> ChatTemplate | None:
    """chat_template.jinja, else the (default) template inside tokenizer_config.json."""
    config = _read_json(path / "tokenizer_config.json")
    tokens = {**_read_json(path / "special_tokens_map.json"), **config}
    source = config.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if (path / "chat_template.jinja").is_file():
        source = (path / "chat_template.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, _special_tokens(tokens), now) if source else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """name -> text of bos_token, eos_token and the like; older files hold objects."""
    named = {k: v for k, v in config.items() if k.endswith("_token") and v is not None}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in named.items()}
    return {k: v for k, v in texts.items() if isinstance(v, str)}
