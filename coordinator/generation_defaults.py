"""What a model's generation_config.json says for the fields that a request leaves unset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.parameter_ranges import RANGES
from specdec.core.errors import ConfigError

_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """max_new_tokens None: as many as the context holds."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None

    @staticmethod
    def read(config: Mapping[str, Any]) -> GenerationDefaults:
        """`config`: the parsed file. do_sample false is temperature 0; a file that does not say samples.
        Raises ConfigError naming a value out of range."""
        given = {name: _checked(name, config.get(name)) for name in _SAMPLING if config.get(name) is not None}
        if config.get("do_sample") is False:
            given["temperature"] = 0.0
        if given.get("top_k") == -1:
            given["top_k"] = 0
        limit = config.get("max_new_tokens")
        return GenerationDefaults(**given, max_new_tokens=None if limit is None else _checked("max_new_tokens", limit))


_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def _checked(name: str, value: Any) -> Any:
    allowed = RANGES["max_tokens" if name == "max_new_tokens" else name]
    if not allowed.holds(value):
        raise ConfigError(f"{_FILE}: {name}", value, allowed.remedy())
    return value
