from __future__ import annotations

import re

import pytest

from specdec.core.errors import ConfigError
from specdec.edge.config import read_config
from specdec.lm.loading import DTYPES
from specdec.lm.networks import NETWORKS
from target_service.config import TargetConfig


def read(*flags: str, **env: str) -> TargetConfig:
    return read_config(TargetConfig, ["--model", "m", *flags], env, "target_service")


@pytest.mark.scenario("B78", "B122")
@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--token-budget", "8", "--max-nodes", "8"), "token_budget"),
        (("--token-budget", "0"), "token_budget"),
        (("--token-budget", "none", "--step-target", "0.1", "--tune-seconds", "0"), "step_target"),
        (("--step-target", "0"), "step_target"),
        (("--tune-seconds", "-1"), "tune_seconds"),
        (("--network", "best"), "network"),
        (("--dtype", "int4"), "dtype"),
        (("--max-nodes", "-1"), "max_nodes"),
        (("--max-nodes", "256"), "max_nodes"),
        (("--kv-tokens", "64"), "kv_tokens"),
        (("--kv-tokens", "100", "--max-context", "50"), "kv_tokens"),
        (("--max-context", "0"), "max_context"),
    ],
)
def test_limits_that_cannot_work_together_are_refused_at_start_by_name(flags: tuple[str, ...], field: str) -> None:
    """A budget below k + 1 shows before the first request, not in it."""
    with pytest.raises(ConfigError) as caught:
        read(*flags)
    assert caught.value.field == field
    assert re.search(r"\d|one of", caught.value.remedy), "the remedy names a number, or what there is to choose from"


@pytest.mark.scenario("B123")
@pytest.mark.parametrize("value", ["1.9", "true", " 3 ", ""])
@pytest.mark.parametrize("name", ["max_nodes", "token_budget", "kv_tokens"])
def test_a_number_is_never_cut_or_guessed(name: str, value: str) -> None:
    """The flag and the environment alike."""
    with pytest.raises(ConfigError):
        read(f"--{name.replace('_', '-')}={value}")
    with pytest.raises(ConfigError):
        read(**{name.upper(): value})


def test_no_drafts_at_all_is_a_lawful_setting() -> None:
    assert read("--max-nodes", "0", "--token-budget", "1").max_nodes == 0


def test_the_context_limit_is_what_model_and_memory_allow() -> None:
    assert read("--kv-tokens", "1000").context_limit(8192) == 1000 - 64
    assert read().context_limit(2048) == 2048
    assert read("--max-context", "100").context_limit(2048) == 100
    with pytest.raises(ConfigError, match="2048 positions"):
        read("--max-context", "4096").context_limit(2048)


@pytest.mark.parametrize("name", ["auto", *NETWORKS])
def test_every_network_and_dtype_can_be_asked_for_and_by_default_all_is_tuned(name: str) -> None:
    assert read("--network", name).network == name
    assert [read("--dtype", dtype).dtype for dtype in DTYPES] == list(DTYPES)
    assert read().token_budget is None and read().tune_seconds > 0
