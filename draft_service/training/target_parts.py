"""What of the target a draft is trained through: its embeddings, final norm and head, all frozen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.core.errors import ConfigError
from specdec.core.tree import Ids
from specdec.lm.heads import rms_norm
from specdec.lm.loading import read_config, read_weights

CHUNK = 256  # rows whose logits over the whole vocabulary are held at a time


@dataclass(frozen=True, slots=True, eq=False)
class TargetParts:
    """embedding, head: [padded vocabulary, H], in `dtype`; norm: float32[H]. layers: the target's own, to copy from."""

    config: Any
    embedding: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor
    vocab_size: int
    layers: torch.nn.ModuleList

    @staticmethod
    def load(folder: str | Path, vocab_size: int, dtype: torch.dtype, device: torch.device) -> TargetParts:
        """Raises ConfigError for a model without decoder layers, final norm and head where Llama has them."""
        model: Any = read_weights(str(folder), read_config(str(folder), None), "float32", str(device))
        head = model.get_output_embeddings()
        try:
            body, norm = model.model, model.model.norm.weight
            layers = body.layers
        except AttributeError:
            raise ConfigError("target", str(folder), f"{type(model).__name__} is not laid out as Llama is") from None
        if head.bias is not None:
            raise ConfigError("target", str(folder), "its head has a bias, which no draft's head has")
        parts = (model.get_input_embeddings().weight, norm, head.weight)
        embedding, norm, weight = (part.detach().to(device) for part in parts)
        return TargetParts(model.config, embedding.to(dtype), norm.float(), weight.to(dtype), vocab_size, layers)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32[..., H]: what the head takes, of states after the last layer."""
        return rms_norm(hidden, self.norm, self.config.rms_norm_eps)

    def rows_of_head(self, ids: Ids | None) -> torch.Tensor:
        """[C, H]: the head's rows for `ids`, None: for the whole vocabulary."""
        if ids is None:
            return self.head[: self.vocab_size]
        return self.head[torch.from_numpy(ids.astype("int64")).to(self.head.device)].contiguous()

    def logsumexp(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32[n], over the vocabulary, of the target's logits. hidden: [n, H], after the last layer."""
        head = self.head[: self.vocab_size]
        normed = self.normed(hidden).to(head.dtype)
        parts = [(part @ head.T).float().logsumexp(-1) for part in torch.split(normed, CHUNK)]
        return torch.cat(parts)
