"""Distilling a draft LM: some of the target's own layers, with its embeddings and head, taught the target's law."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from draft_service.training.draft import Judged, half, judged_rows
from draft_service.training.losses import Mix, head_loss
from draft_service.training.rows import Batch
from draft_service.training.target_parts import TargetParts


def spread_layers(depth: int, count: int) -> tuple[int, ...]:
    """`count` of `depth` layers, evenly spaced, the first and the last among them; of one, the first."""
    return tuple(round(i * (depth - 1) / max(1, count - 1)) for i in range(count))


def student_config(config: Any, layers: int) -> Any:
    cut = copy.deepcopy(config)
    cut.num_hidden_layers = layers
    if getattr(cut, "layer_types", None):
        cut.layer_types = cut.layer_types[:layers]
    return cut


class StudentDraft(nn.Module):
    """See `draft.Draft`. Of the batch's taps the last layer is read."""

    kind, lookahead = "lm", 1

    def __init__(
        self, parts: TargetParts, layers: Sequence[int], head: torch.Tensor, *, half_precision: bool
    ) -> None:  # fmt: skip
        """layers: of the target, from 0, that it begins as."""
        super().__init__()
        self.config = student_config(parts.config, len(layers))
        bare = student_config(self.config, len(layers))
        bare.vocab_size, bare.pad_token_id = 1, None
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            bare, dtype=torch.float32, attn_implementation="sdpa"
        )
        self.layers: nn.ModuleList = model.model.layers
        self.norm: nn.Module = model.model.norm
        self.rotary: nn.Module = model.model.rotary_emb
        for mine, index in zip(self.layers, layers, strict=True):
            mine.load_state_dict(parts.layers[index].state_dict())
        with torch.no_grad():
            cast(torch.Tensor, self.norm.weight).copy_(parts.norm)
        self._parts, self._head, self._half = parts, head, half_precision

    def forward(self, batch: Batch, mix: Mix) -> torch.Tensor:
        (judged,) = self.judge(batch, 1)
        return head_loss(judged.states, judged.target, judged.logsumexp, self._head, mix)

    def judge(self, batch: Batch, steps: int) -> list[Judged]:
        """One step: what it drafts from its own drafts is drafted as from any tokens."""
        x = nn.functional.embedding(batch.ids[:, : batch.length], self._parts.embedding).float()
        visible, positions = batch.visible(), batch.position_ids
        with half(batch.ids.device, self._half):
            rotations = self.rotary(x, position_ids=positions)
            for layer in self.layers:
                x = layer(x, attention_mask=visible, position_ids=positions, position_embeddings=rotations)
            states = self.norm(x)
        return [judged_rows(states.float(), batch, 0, self._parts)]

    def settings(self) -> dict[str, Any]:
        return {"config": {k: v for k, v in self.config.to_dict().items() if not k.endswith("name_or_path")}}

    def tensors(self) -> Mapping[str, torch.Tensor]:
        named = {f"model.layers.{name}": weight for name, weight in self.layers.state_dict().items()}
        return {**named, "model.norm.weight": cast(torch.Tensor, self.norm.weight)}
