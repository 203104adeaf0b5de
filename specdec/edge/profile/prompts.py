"""What is generated from: prompts of four domains, or those of a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.core.errors import ConfigError
from specdec.edge.client import GenerateFields

OWN_DOMAIN = "file"  # of prompts whose file names none


@dataclass(frozen=True, slots=True)
class Prompt:
    """messages: a chat, or () for plain `text`."""

    domain: str
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()

    def fields(self) -> GenerateFields:
        if self.messages:
            return {"chat": [{"role": role, "content": content} for role, content in self.messages]}
        return {"text": self.text}


def _asked(domain: str, *questions: str) -> tuple[Prompt, ...]:
    return tuple(Prompt(domain, messages=(("user", question),)) for question in questions)


_MINUTES = """\
The garden committee met on Tuesday. Anna reported that the old pump has failed and that a new one costs 340 euros. \
Boris offered to dig the trench for the water pipe on Saturday, if two others help. The committee agreed to buy the \
pump, to ask the school for help with the trench, and to plant the apple trees only after the first rain in October."""
_NOTICE = """\
Dear neighbours, from Monday the third to Friday the seventh the lift in staircase B will be renewed. Please keep the \
landing on each floor free. Deliveries can be left with the caretaker between eight and twelve. The staircase light \
will stay on through the night during that week. We apologise for the noise and thank you for your patience."""
_RECIPE = """\
Heat the oven to 200 degrees. Slice four onions, brown them in butter for twenty minutes and stir in a spoon of \
flour. Add a litre of stock and a glass of white wine, then simmer for half an hour. Toast six slices of bread, lay \
them on the soup, cover them with grated cheese and bake everything for ten minutes."""

BUILT_IN: tuple[Prompt, ...] = (
    *_asked(
        "chat",
        "Why does the moon look larger when it is close to the horizon?",
        "I have to give a short speech at my sister's wedding. How should I begin?",
        "What would you take along on a three-day walk in the mountains in spring?",
    ),
    *_asked(
        "code",
        "Write a Python function that returns the n-th Fibonacci number without recursion, with a docstring.",
        "Write a Python class for a stack with push, pop and peek, and a short example of its use.",
        "Write a SQL query that lists the ten customers with the highest total of orders in 2023.",
    ),
    *_asked(
        "copying",
        f"Summarise these minutes in three sentences, in the words of the text.\n\n{_MINUTES}",
        f"Here is a notice to the neighbours. Write the whole notice again.\n\n{_NOTICE}",
        f"Repeat this recipe as numbered steps, in its own words.\n\n{_RECIPE}",
    ),
    *_asked(
        "lists",
        "List the days of the week in English, German and French, one line for each day.",
        "Make a Markdown table of the planets of the solar system with name, order from the sun and number of moons.",
        "List the numbers from 1 to 15 with their squares, one pair on each line, as `n: square`.",
    ),
)


def read_prompts(file: Path) -> tuple[Prompt, ...]:
    """Of a text file each line that is not empty; of a .jsonl file each line an object with `prompt` or `text` (plain
    text), or `messages` (a chat, as [{"role": ..., "content": ...}]), and perhaps a `domain`.

    Raises ConfigError naming the line that is neither."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("prompts", str(file), f"cannot be read: {error}") from None
    if not lines:
        raise ConfigError("prompts", str(file), "holds no prompt")
    if file.suffix != ".jsonl":
        return tuple(Prompt(OWN_DOMAIN, line.strip()) for line in lines)
    return tuple(_parsed(line, f"{file}, line {number}") for number, line in enumerate(lines, 1))


def _parsed(line: str, where: str) -> Prompt:
    try:
        content: Any = json.loads(line)
        domain = str(content.get("domain", OWN_DOMAIN))
        if "messages" in content:
            return Prompt(domain, messages=tuple((str(m["role"]), str(m["content"])) for m in content["messages"]))
        return Prompt(domain, str(content["prompt"] if "prompt" in content else content["text"]))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError("prompts", where, "give an object with prompt, text or messages") from None
