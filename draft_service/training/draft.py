"""What the trainer asks of a draft in training, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from draft_service.training.losses import ROWS, Mix, acceptance
from draft_service.training.rows import Batch
from draft_service.training.target_parts import TargetParts


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A draft's states beside the target's, for one step of its own: states, target: [n, H], after the final norms;
    logsumexp: float32[n]."""

    states: torch.Tensor
    target: torch.Tensor
    logsumexp: torch.Tensor


class Draft(Protocol):
    """An `nn.Module`; calling it gives the sum of its losses over the batch, steps weighed by what they are worth.

    kind, lookahead: see draft folders, `Rows`. settings, tensors: what goes into the folder, besides what all kinds
    have."""

    kind: str
    lookahead: int

    def __call__(self, batch: Batch, mix: Mix) -> torch.Tensor: ...

    def judge(self, batch: Batch, steps: int) -> list[Judged]:
        """Per step, the first is the draft token after the known ones."""

    def settings(self) -> dict[str, Any]: ...

    def tensors(self) -> Mapping[str, torch.Tensor]: ...


def judged_rows(
    states: torch.Tensor, batch: Batch, ahead: int, parts: TargetParts, also: torch.Tensor | None = None
) -> Judged:
    """Rows of `states` [B, T, H] whose law is the target's `ahead` positions further on: where the token after that is
    judged, the document is the same, and `also` bool[B, T]."""
    span = slice(ahead, ahead + batch.length)
    rows = batch.judged[:, span] & batch.together(ahead)
    if also is not None:
        rows = rows & also
    return Judged(states[rows], parts.normed(batch.taps[:, span, -1][rows]), batch.logsumexp[:, span][rows])


def alphas(judged: Judged, head: torch.Tensor) -> torch.Tensor:
    """float32[n]: exact acceptance at temperature 1 of every row, in float32."""
    exact = head.float()
    parts = [torch.split(each, ROWS) for each in (judged.states, judged.target, judged.logsumexp)]
    rows = zip(*parts, strict=True)
    found = [acceptance(t.float() @ exact.T - lse[:, None], x.float() @ exact.T) for x, t, lse in rows]
    return torch.cat(found) if found else torch.zeros(0)


@contextmanager
def half(device: torch.device, wanted: bool) -> Iterator[None]:
    """Matrix products in bfloat16; weights, gradients and optimizer stay in float32."""
    with torch.autocast(device.type, torch.bfloat16, enabled=wanted):
        yield
