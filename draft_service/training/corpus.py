"""What drafts learn from, as token ids: conversations that the target wrote, or texts and chats of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.core.errors import ConfigError
from specdec.core.tree import Ids

HELD_OUT = 20  # every 20th document is kept from training


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """ids: uint32[n]. learned: bool[n], the tokens that a draft is to guess. temperature: at which the learned ones
    were sampled, None if nobody knows."""

    ids: Ids
    learned: NDArray[np.bool_]
    temperature: float | None = None


def read_corpus(path: str | Path, tokenizer: Any, max_tokens: int) -> list[Document]:
    """A .txt file is one text. Anything else is JSONL, line by line {"ids", "answer", "temperature"} as `train write`
    leaves it, {"messages": [...]} or {"text": ...}. Of chats the answers are learned, of texts everything. Documents
    are cut at max_tokens; of a growing file, an unfinished last line is left out.

    Raises ConfigError naming the file, and the line that is none of these."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError("data", str(path), "no such file; `specdec train write` makes one")
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".txt":
        found = _plain(tokenizer.encode(text), max_tokens)
    else:
        found = (document for line in _lines(text, file) for document in _document(*line, tokenizer, max_tokens))
    documents = [document for document in found if len(document.ids) > 1]
    if not documents:
        raise ConfigError("data", str(path), "holds no document of at least two tokens")
    return documents


def split(documents: Sequence[Document]) -> tuple[list[int], list[int]]:
    """Indices to train on, and indices held out."""
    held = list(range(HELD_OUT - 1, len(documents), HELD_OUT)) or [len(documents) - 1]
    kept = set(held) if len(documents) > 1 else set()
    return [i for i in range(len(documents)) if i not in kept], held


def _lines(text: str, file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        where = f"{file}, line {number}"
        try:
            fields = json.loads(line) if line.strip() else None
        except ValueError:
            if number == len(lines) and not line.endswith("\n"):
                return
            raise ConfigError("data", where, "is no JSON") from None
        if fields is not None:
            yield fields, where


def _document(fields: Any, where: str, tokenizer: Any, max_tokens: int) -> Iterator[Document]:
    if isinstance(fields, dict) and "ids" in fields:
        ids = np.array(fields["ids"], dtype=np.uint32)[:max_tokens]
        yield Document(ids, np.arange(len(ids)) >= fields["answer"], fields.get("temperature"))
    elif isinstance(fields, dict) and "messages" in fields:
        yield _chat(fields["messages"], where, tokenizer, max_tokens)
    elif isinstance(fields, dict) and isinstance(fields.get("text"), str):
        yield from _plain(tokenizer.encode(fields["text"]), max_tokens)
    else:
        raise ConfigError("data", where, 'needs "messages", "text" or "ids"')


def _plain(ids: Sequence[int], max_tokens: int) -> Iterator[Document]:
    """A text in pieces of max_tokens; the first token of each has nothing before it to be guessed from."""
    for first in range(0, len(ids), max_tokens):
        piece = np.array(ids[first : first + max_tokens], dtype=np.uint32)
        yield Document(piece, np.arange(len(piece)) > 0)


def _chat(messages: Any, where: str, tokenizer: Any, max_tokens: int) -> Document:
    """Which tokens are answers is found by rendering every beginning: a template may put anything around a turn."""
    if not tokenizer.chat_template:
        raise ConfigError("data", where, "is a chat, and the model has no chat template: give texts")
    ids: list[int] = []
    learned: list[bool] = []
    for end in range(1, len(messages) + 1):
        answer = messages[end - 1]["role"] == "assistant"
        if answer:
            before = _render(tokenizer, messages[: end - 1], True)
            learned += [False] * (len(before) - len(ids))
            ids = before if len(before) >= len(ids) else ids
        whole = _render(tokenizer, messages[:end], False)
        if whole[: len(ids)] != ids:
            raise ConfigError("data", where, "the chat template changes earlier turns: give the chat as text")
        learned += [answer] * (len(whole) - len(ids))
        ids = whole
    return Document(np.array(ids, np.uint32)[:max_tokens], np.array(learned, np.bool_)[:max_tokens])


def _render(tokenizer: Any, messages: Any, opened: bool) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)
    return list(tokenizer.encode(text, add_special_tokens=False))
