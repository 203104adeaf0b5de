"""What a number in a request, or in a model's generation_config, may be. One table for both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specdec.core.sampling import MAX_LOGPROBS

MAX_CHOICES = 16
MAX_COUNT = 2**31 - 1  # counts travel as uint32


@dataclass(frozen=True, slots=True)
class Range:
    """An interval; an open end is not in it. Integers are exact, numbers must be finite."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    integer: bool = False
    note: str = ""

    def holds(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.integer else (int, float)):
            return False
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return math.isfinite(value) and above and below

    def remedy(self) -> str:
        kind = "an integer" if self.integer else "a finite number"
        left, right = "(" if self.open_low else "[", ")" if self.open_high or self.high == math.inf else "]"
        return f"must be {kind} in {left}{self.low:g}, {self.high:g}{right}{self.note}"


RANGES = {
    "max_tokens": Range(1, integer=True),
    "min_tokens": Range(0, MAX_COUNT, integer=True),
    "temperature": Range(0),
    "top_k": Range(-1, integer=True, note="; 0 or -1 turns it off"),
    "top_p": Range(0, 1, open_low=True, note="; 1 turns it off"),
    "min_p": Range(0, 1, open_high=True, note="; 0 turns it off"),
    "repetition_penalty": Range(0, open_low=True, note="; 1 turns it off"),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "n": Range(1, MAX_CHOICES, integer=True),
    "logprobs": Range(0, MAX_LOGPROBS, integer=True),
    "received_tokens": Range(0, integer=True),
}
