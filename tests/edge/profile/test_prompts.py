from __future__ import annotations

from pathlib import Path

import pytest

from specdec.core.errors import ConfigError
from specdec.edge.profile.prompts import BUILT_IN, OWN_DOMAIN, Prompt, read_prompts


def test_the_built_in_prompts_are_a_few_of_each_of_four_domains() -> None:
    domains = [prompt.domain for prompt in BUILT_IN]
    assert {domain: domains.count(domain) for domain in domains} == {"chat": 3, "code": 3, "copying": 3, "lists": 3}
    assert all("chat" in prompt.fields() for prompt in BUILT_IN)


def test_a_text_file_holds_a_prompt_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("One\n\n  Two \n")
    assert read_prompts(tmp_path / "p.txt") == (Prompt(OWN_DOMAIN, "One"), Prompt(OWN_DOMAIN, "Two"))


def test_a_jsonl_file_holds_texts_and_chats_with_domains(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "One", "domain": "code"}\n{"text": "Two"}\n{"messages": [{"role": "user", "content": "Three"}]}\n'
    )
    one, two, three = read_prompts(tmp_path / "p.jsonl")
    assert (one, two) == (Prompt("code", "One"), Prompt(OWN_DOMAIN, "Two"))
    assert three.fields() == {"chat": [{"role": "user", "content": "Three"}]}


@pytest.mark.parametrize("line", ["{", "[]", "7", '{"domain": "code"}', '{"messages": [{"role": "user"}]}'])
def test_a_line_that_is_no_prompt_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.jsonl").write_text(f'{{"text": "One"}}\n{line}\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_prompts(tmp_path / "p.jsonl")


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "p.txt").write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_prompts(tmp_path / "p.txt")
