"""What a PromQL expression reads: enough of its grammar to find the names of metrics and of labels in matchers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTOR = re.compile(r"(?<![\w:.])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\s*\(|[\w:])")
_WORDS = {"and", "or", "unless", "offset", "bool", "by", "without", "on", "ignoring", "inf", "nan", "atan2"}
_LABEL = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")


@dataclass(frozen=True, slots=True)
class Selector:
    metric: str
    labels: frozenset[str]


def selectors(expression: str) -> Iterator[Selector]:
    """Every metric that is read, with the labels that it is chosen by."""
    bare = re.sub(r"\[[^\]]*\]", "", _GROUPING.sub(" ", _STRING.sub("''", expression)))
    bare = re.sub(r"\boffset\s+\w+", " ", bare)
    for match in _SELECTOR.finditer(bare):
        name, matchers = match[1], match[2] or ""
        if name.lower() not in _WORDS:
            yield Selector(name, frozenset(_LABEL.findall(matchers)))
