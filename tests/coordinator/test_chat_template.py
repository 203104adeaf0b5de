"""Chat templates as models write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from coordinator.chat_template import ChatTemplate
from coordinator.session import ChatMessage
from specdec.core.errors import ConfigError, InvalidArgument
from tests.toy_tokenizers import CHATML, PLAIN_CHAT

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = [ChatMessage("user", "hello")]
MORE = [ChatMessage("user", "more")]
FORGETS_THOUGHTS = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content.split('</think>')[-1] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
FORGETS_EARLIER_THOUGHTS = FORGETS_THOUGHTS.replace(
    "m.content.split('</think>')[-1]", "(m.content if loop.last else m.content.split('</think>')[-1])"
)
OPENS_WITH_A_THOUGHT = FORGETS_THOUGHTS.replace("{{ '<assistant>' }}", "{{ '<assistant><think>' }}")
TRIMS = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
LAST_ONLY = "{{ '<' + messages[-1].role + '>' + messages[-1].content + '<end>' }}"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENS, now=lambda: datetime(2026, 3, 1))


def test_messages_and_special_tokens_reach_the_template() -> None:
    assert template(PLAIN_CHAT).render(HELLO, True) == "<s>user:hello</s>\nassistant:"
    assert template(PLAIN_CHAT).render(HELLO, False) == "<s>user:hello</s>\n"


@pytest.mark.parametrize(
    "source, text",
    [
        ("{%- for m in messages %}\n    {{- m.content }}\n    {%- break %}\n{%- endfor %}", "hello"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-03-01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hello!"),
        ("{{ tools is none and documents is none }}", "True"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
)
def test_templates_have_what_transformers_gives_them(source: str, text: str) -> None:
    assert template(source).render(HELLO, False) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].missing + 'x' }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content.strip() }}",
        "{{ 'x' + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_raises_or_leaves_the_sandbox_refuses_the_chat(source: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        template(source).render(HELLO, True)
    assert caught.value.field == "chat"


def test_the_templates_own_words_reach_the_caller() -> None:
    with pytest.raises(InvalidArgument, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(HELLO, True)


def test_a_template_that_cannot_be_parsed_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        template("a\n{% if %}")


def test_a_continuation_adds_what_the_answer_left_open() -> None:
    chatml = template(CHATML)
    ended = chatml.continuation(HELLO, "hi", MORE, ended_by="<|im_end|>")
    cut = chatml.continuation(HELLO, "hi", MORE, ended_by=None)
    assert ended == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    assert cut == "<|im_end|>" + ended


def test_context_and_continuation_are_the_whole_chat() -> None:
    chatml = template(CHATML)
    answered = [*HELLO, ChatMessage("assistant", "hi")]
    for ended_by, answer in (("<|im_end|>", "hi<|im_end|>"), (None, "hi")):
        context = chatml.render(HELLO, True) + answer
        rest = chatml.continuation(HELLO, "hi", MORE, ended_by)
        assert rest is not None and context + rest == chatml.render([*answered, *MORE], True)


@pytest.mark.parametrize("source", [TRIMS, TRIMS.replace("'>' + m", "'> ' + m")])
def test_an_answer_that_the_template_trims_or_spaces_is_still_continued(source: str) -> None:
    rest = template(source).continuation(HELLO, " hi ", MORE, "<end>")
    assert rest is not None and rest.replace(" ", "") == "\n<user>more<end>\n<assistant>"


@pytest.mark.parametrize(
    "source, answer, ended_by",
    [
        (FORGETS_THOUGHTS, "hm</think>hi", "<end>"),  # rewrites the answer
        (FORGETS_EARLIER_THOUGHTS, "hm</think>hi", "<end>"),  # rewrites it once it is history
        (OPENS_WITH_A_THOUGHT, "", None),  # opened the answer otherwise than it writes history
        (LAST_ONLY, "hi", "<end>"),  # rewrites everything
        (CHATML, "hi", "<|endoftext|>"),  # ended otherwise than the template ends a turn
        (CHATML, "hi", ""),
    ],
)
def test_no_continuation_where_the_context_is_no_prefix(source: str, answer: str, ended_by: str | None) -> None:
    assert template(source).continuation(HELLO, answer, MORE, ended_by) is None
