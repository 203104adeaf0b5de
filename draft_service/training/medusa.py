"""Training Medusa heads: each on the target's law so many positions further on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from draft_service.training.draft import Judged, half, judged_rows
from draft_service.training.losses import Mix, head_loss
from draft_service.training.rows import Batch
from draft_service.training.target_parts import TargetParts
from specdec.lm.heads import MedusaHeads

DECAY = 0.8  # of a head's weight against that of the head before it (Cai et al. 2024)


class MedusaDraft(nn.Module):
    """See `draft.Draft`. Of the batch's taps the last layer is read."""

    kind = "medusa"

    def __init__(self, parts: TargetParts, num_heads: int, head: torch.Tensor, *, half_precision: bool) -> None:
        super().__init__()
        self.draft = MedusaHeads(parts.config.hidden_size, num_heads)
        self.lookahead = num_heads
        self._parts, self._head, self._half = parts, head, half_precision

    def forward(self, batch: Batch, mix: Mix) -> torch.Tensor:
        total = torch.zeros((), device=batch.ids.device)
        for step, judged in enumerate(self.judge(batch, self.lookahead)):
            loss = head_loss(judged.states, judged.target, judged.logsumexp, self._head, mix)
            total = total + DECAY**step * loss
        return total

    def judge(self, batch: Batch, steps: int) -> list[Judged]:
        normed = self._parts.normed(batch.taps[:, : batch.length, -1])
        with half(batch.ids.device, self._half):
            states = self.draft(normed)
        return [judged_rows(states[i].float(), batch, i + 1, self._parts) for i in range(min(steps, len(states)))]

    def settings(self) -> dict[str, Any]:
        return {"num_heads": self.lookahead}

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return self.draft.state_dict()
