"""Chat messages as text, by the model's own jinja template in a sandbox. What a template may use (its
variables, filters and functions) is what `transformers` gives it, so that both write the same text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinator.session import ChatMessage
from specdec.core.errors import ConfigError, InvalidArgument

# What an untrusted template can raise on a caller's messages, beside jinja's own errors.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError,
)  # fmt: skip


class ChatTemplate:
    """`variables`: the special tokens' texts, such as bos_token. Raises ConfigError where the template cannot
    be parsed."""

    def __init__(self, source: str, variables: Mapping[str, str], now: Callable[[], datetime] = datetime.now) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError("chat_template", f"line {error.lineno}", f"cannot be parsed: {error}") from error
        self._variables = dict(variables)

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool) -> str:
        """Raises InvalidArgument (field `chat`) where the template refuses the messages."""
        try:
            return self._template.render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except _TEMPLATE_ERRORS as error:
            roles = [m.role for m in messages]
            raise InvalidArgument("chat", roles, f"the model's chat template refuses this: {error}") from error

    def continuation(
        self,
        old_messages: Sequence[ChatMessage],
        answer: str,
        new_messages: Sequence[ChatMessage],
        ended_by: str | None,
    ) -> str | None:
        """What the template puts behind an answer that is already in the context: the rest of the answer's
        turn, the new messages and the opening of the next answer. `ended_by`: the text of the token that
        ended the answer, if one did (it stands in the context), else None and the template's own end of turn
        comes first.

        None where the context is no prefix of what the template writes now: it rewrites history, or ends its
        turns otherwise than the model did."""
        opened = self.render(old_messages, add_generation_prompt=True)
        answered = [*old_messages, ChatMessage("assistant", answer)]
        closed = self.render(answered, add_generation_prompt=False)
        whole = self.render([*answered, *new_messages], add_generation_prompt=True)
        if not (closed.startswith(opened) and whole.startswith(closed)):
            return None
        end_of_turn = _behind(closed[len(opened) :], answer)
        if end_of_turn is None:
            return None
        if ended_by is not None:
            if not ended_by or not end_of_turn.startswith(ended_by):
                return None
            end_of_turn = end_of_turn[len(ended_by) :]
        return end_of_turn + whole[len(closed) :]


def _behind(text: str, answer: str) -> str | None:
    """What follows the answer in `text`, which starts with it, perhaps trimmed or spaced by the template."""
    for form in (answer, answer.rstrip()):
        if text.startswith(form):
            return text[len(form) :]
        if form.strip() and text.lstrip().startswith(form.lstrip()):
            return text.lstrip()[len(form.lstrip()) :]
    return None


class _Generation(Extension):
    """`{% generation %}`: marks what an assistant wrote, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
