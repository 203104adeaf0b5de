"""Training an EAGLE head: on the target's features, then on its own outputs as it will meet them when it drafts.

Pass 0 reads the target's features. Pass s reads, at every position, what pass s - 1 gave for it, with keys and values
of the target's features up to s positions before and of the passes between (Li et al. 2025, "EAGLE-3"; Zhang et al.
2025, "HASS"): exactly what draft token s + 1 sees, for all positions at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from draft_service.training.draft import Judged, half, judged_rows
from draft_service.training.losses import Mix, head_loss
from draft_service.training.rows import Batch
from draft_service.training.target_parts import TargetParts
from specdec.lm.heads import EagleHead, decoder_config

DECAY = 0.8  # a later draft token counts only if all before it are accepted


class Passes:
    """Keys and values of all passes so far, laid end to end."""

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, **unused: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._keys.append(key)
        self._values.append(value)
        return torch.cat(self._keys, dim=2), torch.cat(self._values, dim=2)


def visible_in_pass(visible: torch.Tensor, step: int) -> torch.Tensor:
    """bool[B, 1, T, (step + 1) T] from bool[B, 1, T, T] of pass 0: position t sees pass 0 up to t - step, and of pass
    i > 0 position t - step + i."""
    length = visible.shape[-1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    distance = distance.to(visible.device)
    later = [(distance == step - i).expand_as(visible) for i in range(1, step + 1)]
    return torch.cat([visible & (distance >= step), *later], dim=-1)


class EagleDraft(nn.Module):
    """See `draft.Draft`. The batch's taps are those of `layers`, followed by the last layer's unless it is the last of
    them."""

    kind, lookahead = "eagle", 1

    def __init__(
        self, parts: TargetParts, layers: tuple[int, ...], head: torch.Tensor, *, unroll: int, feature_weight: float,
        half_precision: bool
    ) -> None:  # fmt: skip
        """layers: of the target. head: [C, H], its rows for the ids drafted from. unroll: passes on own outputs."""
        super().__init__()
        config = parts.config
        self.draft = EagleHead(config.hidden_size, len(layers), decoder_config(config))
        _begin(self.draft, parts)
        self._parts, self._layers, self._head = parts, layers, head
        self._unroll, self._feature_weight, self._half = unroll, feature_weight, half_precision

    def forward(self, batch: Batch, mix: Mix) -> torch.Tensor:
        total = torch.zeros((), device=batch.ids.device)
        for step, states in enumerate(self._passes(batch, self._unroll + 1)):
            judged = self._judged(states, batch, step)
            loss = head_loss(judged.states, judged.target, judged.logsumexp, self._head, mix)
            if self._feature_weight:
                apart = nn.functional.smooth_l1_loss(judged.states, judged.target, reduction="none")
                loss = loss + self._feature_weight * apart.mean(-1).sum()
            total = total + DECAY**step * loss
        return total

    def judge(self, batch: Batch, steps: int) -> list[Judged]:
        return [self._judged(states, batch, step) for step, states in enumerate(self._passes(batch, steps))]

    def settings(self) -> dict[str, Any]:
        return {"feature_layers": list(self._layers)}

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return self.draft.state_dict()

    def _passes(self, batch: Batch, passes: int) -> list[torch.Tensor]:
        """Per pass [B, T, H]: estimates of the features one position further on."""
        length = batch.length
        device = batch.ids.device
        embeddings = nn.functional.embedding(batch.ids[:, 1 : length + 1], self._parts.embedding)
        visible, cache = batch.visible(), Passes()
        found: list[torch.Tensor] = []
        with half(device, self._half):
            g = self.draft.gather(batch.taps[:, :length, : len(self._layers)].to(self.draft.fuse.weight.dtype))
            for step in range(passes):
                seen = visible_in_pass(visible, step) if step else visible
                g = self.draft(g, embeddings, batch.position_ids, seen, cache)
                found.append(g)
                g = nn.functional.pad(g[:, :-1], (0, 0, 1, 0))
        return found

    def _judged(self, states: torch.Tensor, batch: Batch, step: int) -> Judged:
        same = torch.zeros_like(batch.judged[:, : batch.length])
        same[:, step:] = batch.documents[:, : batch.length - step] == batch.documents[:, step : batch.length]
        return judged_rows(self._parts.normed(states), batch, 1, self._parts, same)


def _begin(draft: EagleHead, parts: TargetParts) -> None:
    """The target's last layer is a better beginning than none, and its own feature a first guess at the next one."""
    draft.layer.load_state_dict(parts.layers[-1].state_dict())
    hidden = parts.config.hidden_size
    with torch.no_grad():
        nn.init.normal_(draft.fuse.weight, std=(2 * hidden) ** -0.5)
        nn.init.zeros_(draft.fuse.bias)
