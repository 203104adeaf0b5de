"""Settings are refused at boot, by name, value and allowed range; what is given is what is in force."""

from __future__ import annotations

import pytest

from draft_service.config import DraftConfig
from specdec.core.errors import ConfigError
from specdec.edge.config import describe, read_config

GIVEN = {
    "drafters": "ngram,lm",
    "model": "/models/tiny",
    "num_layers": "3",
    "dtype": "bfloat16",
    "network": "stock",
    "device": "cuda:1",
    "host": "0.0.0.0",
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


@pytest.mark.scenario("B124")
def test_every_setting_given_is_the_effective_one() -> None:
    """By flag and by environment; the test fails for a setting that it does not know."""
    flags = [part for name, value in GIVEN.items() for part in (f"--{name.replace('_', '-')}", value)]
    assert describe(read(*flags)) == GIVEN
    assert describe(read(**{name.upper(): value for name, value in GIVEN.items()})) == GIVEN
