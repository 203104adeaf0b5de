"""What generation_config.json makes of unset fields."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.generation_defaults import GenerationDefaults
from specdec.core.errors import ConfigError


def test_an_empty_file_leaves_everything_off() -> None:
    assert GenerationDefaults.read({}) == GenerationDefaults(1.0, 0, 1.0, 0.0, 1.0, None)


def test_values_are_taken_and_nulls_are_unset() -> None:
    config = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": None, "repetition_penalty": 1.05}
    expected = GenerationDefaults(0.7, 20, 0.8, 0.0, 1.05, 64)
    assert GenerationDefaults.read({**config, "max_new_tokens": 64, "eos_token_id": 3}) == expected


@pytest.mark.parametrize("do_sample, temperature", [(False, 0.0), (True, 0.6), (None, 0.6)])
def test_only_do_sample_false_means_greedy(do_sample: bool | None, temperature: float) -> None:
    read = GenerationDefaults.read({"do_sample": do_sample, "temperature": 0.6})
    assert read.temperature == temperature


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -1), ("temperature", "hot"), ("temperature", float("nan")), ("top_k", 1.5), ("top_k", -2),
        ("top_p", 0), ("min_p", 1), ("repetition_penalty", 0), ("max_new_tokens", 0), ("top_k", True),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_a_configuration_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        GenerationDefaults.read({name: value})
    assert name in caught.value.field and caught.value.value is value
