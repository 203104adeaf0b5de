"""Drafters that read the target's hidden states, as modules that train and serve alike.

Hidden states, here "features", are the residual stream after the target's last layer, before its final norm. The
target's embeddings, final norm and head are not part of any head: whoever runs it brings them."""

from __future__ import annotations

import copy
from typing import Any, Protocol, cast

import torch
from torch import nn
from transformers import AutoModel

__all__ = ["EagleHead", "KeyValues", "MedusaHeads", "decoder_config", "rms_norm"]


class KeyValues(Protocol):
    """Where an attention layer of `transformers` puts keys and values, [B, kv_heads, T, D], and finds all it sees."""

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, **unused: Any
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class MedusaHeads(nn.Module):
    """Head i guesses the token i + 2 positions after the feature's (Cai et al. 2024, "Medusa"), through the target's
    own head. Untrained heads are the identity: each then guesses what the target's head says of the next token."""

    def __init__(self, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(num_heads)])
        for head in self.heads:
            nn.init.zeros_(cast(nn.Linear, head).weight)
            nn.init.zeros_(cast(nn.Linear, head).bias)

    def forward(self, normed: torch.Tensor) -> torch.Tensor:
        """normed: [..., H], features after the target's final norm. Returns [num_heads, ..., H], each ready for the
        target's head."""
        return torch.stack([normed + nn.functional.silu(head(normed)) for head in self.heads])


class EagleHead(nn.Module):
    """Continues the target's features by one decoder layer (Li et al. 2024, "EAGLE"; several layers' features as in
    their EAGLE-3, 2025). The feature at position i, with the embedding of token i + 1, gives the feature at i + 1."""

    def __init__(self, hidden: int, layers: int, config: Any) -> None:
        """layers: of the target, whose features are given together. config: of the decoder layer, see
        `decoder_config`."""
        super().__init__()
        self.project = nn.Linear(layers * hidden, hidden, bias=False) if layers > 1 else None
        self.fuse = nn.Linear(2 * hidden, hidden)
        self.norm_feature = _Norm(hidden, config.rms_norm_eps)
        self.norm_embedding = _Norm(hidden, config.rms_norm_eps)
        body = AutoModel.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
        self.layer: nn.Module = body.layers[0]
        self.rotary: nn.Module = body.rotary_emb  # has no weights: nothing of it is stored

    def gather(self, features: torch.Tensor) -> torch.Tensor:
        """features: [..., layers, H] of the target. Returns g: [..., H]."""
        if self.project is None:
            return features[..., 0, :]
        return cast(torch.Tensor, self.project(features.flatten(-2)))

    def mix(self, g: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """What enters the decoder layer. g: [..., H], `gather`ed or an own output; embeddings: [..., H], of the token
        after each. Returns [..., H]."""
        both = torch.cat([self.norm_feature(g), self.norm_embedding(embeddings)], dim=-1)
        return cast(torch.Tensor, self.fuse(both))

    def forward(
        self,
        g: torch.Tensor,
        embeddings: torch.Tensor,
        position_ids: torch.Tensor,
        visible: torch.Tensor | None = None,
        cache: KeyValues | None = None,
    ) -> torch.Tensor:
        """g, embeddings: [B, T, H], see `mix`. position_ids: int64[B, T]. visible: bool[B, 1, T, S], what each row
        sees of the S rows that `cache` gives (its own T without one); None: every row up to itself.
        Returns [B, T, H]: estimates of the next features, before the target's final norm."""
        mixed = self.mix(g, embeddings)
        out = self.layer(
            mixed,
            attention_mask=visible,
            position_ids=position_ids,
            position_embeddings=self.rotary(mixed, position_ids=position_ids),
            cache=cache,
        )
        return cast(torch.Tensor, out)


def decoder_config(config: Any) -> Any:
    """The target's configuration cut to one layer and to a vocabulary of one, for `EagleHead`."""
    cut = copy.deepcopy(config)
    cut.num_hidden_layers, cut.vocab_size = 1, 1
    cut.pad_token_id = cut.bos_token_id = cut.eos_token_id = None
    if getattr(cut, "layer_types", None):
        cut.layer_types = cut.layer_types[:1]
    return cut


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[..., H] in float32, whatever x is held in."""
    return nn.functional.rms_norm(x.float(), weight.shape, weight.float(), eps)


class _Norm(nn.Module):
    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)
