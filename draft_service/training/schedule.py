"""Learning rate and losses as functions of progress, the share of a run that is done."""

from __future__ import annotations

import math
from dataclasses import dataclass

from draft_service.training.losses import Mix

RAMP = 0.1  # share of a run over which one loss gives way to the other


@dataclass(frozen=True, slots=True)
class Schedule:
    """rate: of learning, at its highest. warm_up: steps that it rises for; it then falls along a cosine to a
    twentieth. begin, end: losses; `end` takes over from progress `switch` on."""

    rate: float
    warm_up: int
    begin: Mix
    end: Mix
    switch: float

    def rate_at(self, step: int, progress: float) -> float:
        fall = 0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, progress))) / 2
        return self.rate * fall * min(1.0, (step + 1) / max(1, self.warm_up))

    def mix_at(self, progress: float) -> Mix:
        return self.begin.blend(self.end, min(1.0, max(0.0, (progress - self.switch) / RAMP)))
