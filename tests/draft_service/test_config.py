"""Settings are refused at boot, by name, value and allowed range; what is given is what is in force."""

from __future__ import annotations

import re

import pytest

from draft_service.config import DraftConfig
from specdec.core.errors import ConfigError
from specdec.edge.config import describe, read_config

GIVEN = {
    "drafters": "ngram,lm",
    "model": "/models/tiny",
    "target_model": "/models/target",
    "num_layers": "3",
    "head_ids": "first:8192",
    "tli": "true",
    "suffix_tokens": "12345",
    "suffix_shared": "false",
    "dtype": "bfloat16",
    "network": "stock",
    "device": "cuda:1",
    "host": "0.0.0.0",
    "tls_certificate": "/tls/own.pem",
    "tls_key": "/tls/key.pem",
    "tls_ca": "/tls/ca.pem",
    "port": "50099",
    "metrics_port": "9099",
    "replica_id": "drafter-7",
    "token_budget": "77",
    "kv_tokens": "1234",
    "threads": "5",
    "max_draft_tokens": "9",
    "max_support": "17",
    "queue_limit": "3",
    "stuck_after": "7.5",
    "drain_grace": "1.5",
}


def read(*argv: str, **env: str) -> DraftConfig:
    return read_config(DraftConfig, list(argv), env, "draft_service")


@pytest.mark.scenario("B122")
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--max-draft-tokens", "0"),
        ("--max-draft-tokens", "-1"),
        ("--max-draft-tokens", "256"),
        ("--max-draft-tokens", "none"),
        ("--max-support", "0"),
        ("--max-support", "256"),
        ("--token-budget", "0"),
        ("--num-layers", "0"),
        ("--threads", "0"),
        ("--port", "65536"),
        ("--dtype", "float16"),
        ("--drafters", "medusa"),
        ("--drafters", ""),
        ("--drafters", "ngram,ngram"),
        ("--kv-tokens", "16"),
        ("--nonsense", "1"),
    ],
)
def test_a_bad_setting_is_refused_by_name(flag: str, value: str) -> None:
    """A bad number must not show up at the first request, as a type error or as a bare negative number."""
    with pytest.raises(ConfigError) as refused:
        read(flag, value)
    assert flag.strip("-").replace("-", "_") in str(refused.value) or flag in str(refused.value)


@pytest.mark.scenario("B123")
@pytest.mark.parametrize("value", ["1.9", "true", " 3 ", "4x", ""])
@pytest.mark.parametrize("name", ["max_draft_tokens", "token_budget", "kv_tokens"])
def test_no_number_is_rounded_or_guessed(name: str, value: str) -> None:
    """1.9 draft tokens are not one draft token, in a flag and in the environment."""
    with pytest.raises(ConfigError, match=name):
        read(f"--{name.replace('_', '-')}", value)
    with pytest.raises(ConfigError, match=name):
        read(**{name.upper(): value})


def test_a_language_model_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="model = None"):
        read("--drafters", "lm")
    assert read("--drafters", "lm:/models/a").entries == {"lm": "/models/a"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--drafters medusa", "drafters = 'medusa': the drafter 'medusa' needs its draft folder"),
        ("--drafters eagle:", "nothing behind the colon"),
        ("--drafters eagle:/a", "target_model = None: the drafter 'eagle' needs the target"),
        ("--drafters self", "target_model = None"),
        ("--drafters self:int4 --target-model t", "one of float32, bfloat16, int8"),
        ("--drafters ngram:/a", "ngram takes no argument"),
        ("--drafters lm:/a,lm:/b", "names a drafter twice"),
        ("--drafters lookahead", "choose among ngram, suffix, lm, self"),
        ("--drafters lm:/a --tli", "target_model = None: tli needs"),
        ("--drafters self --target-model t --tli", "tli = True: is for the drafter 'lm'"),
        ("--head-ids first:9", "head_ids = 'first:9': is for"),
    ],
)
def test_entries_that_cannot_work_are_refused_with_the_remedy(arguments: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read(*arguments.split())


@pytest.mark.parametrize(
    ("arguments", "precision"),
    [
        ("", "int8"),
        ("--device cuda", "bfloat16"),
        ("--device cuda --dtype int8", "int8"),
        ("--dtype float32", "float32"),
    ],
)
def test_drafts_are_int8_on_cpu_unless_told_otherwise(arguments: str, precision: str) -> None:
    assert read(*arguments.split()).precision == precision


@pytest.mark.scenario("B124")
def test_every_setting_given_is_the_effective_one() -> None:
    """By flag and by environment; the test fails for a setting that it does not know."""
    flags = [part for name, value in GIVEN.items() for part in (f"--{name.replace('_', '-')}", value)]
    assert describe(read(*flags)) == GIVEN
    assert describe(read(**{name.upper(): value for name, value in GIVEN.items()})) == GIVEN
