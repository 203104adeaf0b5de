"""`python -m tests.end_to_end.slow_verifier`, with the flags of the target service: a verifier whose forwards of long
prompts burn a processor for BURNED seconds, however fast it is."""

from __future__ import annotations

import time
from typing import Any

import torch

from specdec.lm.runner import Runner
from target_service.__main__ import main

BURNED = 2.5
LONG = 100  # rows


def burn(seconds: float) -> None:
    """As a model does: many short operations, from Python."""
    until, matrix = time.monotonic() + seconds, torch.ones(256, 256)
    while time.monotonic() < until:
        matrix = (matrix @ matrix).clamp_(0.0, 1.0)


def slowed(compute: Any) -> Any:
    def computed(runner: Runner, segments: Any, *rest: Any) -> Any:
        if sum(len(segment.token_ids) for segment in segments) > LONG:
            burn(BURNED)
        return compute(runner, segments, *rest)

    return computed


if __name__ == "__main__":
    setattr(Runner, "compute", slowed(Runner.compute))  # noqa: B010  a class of another module
    main()
