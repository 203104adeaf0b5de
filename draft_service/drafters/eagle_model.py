"""An EAGLE head as it is served: its decoder layer on a network of ours, what stands before it in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from draft_service.drafters.feature_model import FeatureModel, served
from specdec.core.errors import ConfigError
from specdec.core.features import FeatureRows
from specdec.core.tree import Ids
from specdec.lm.heads import decoder_config, rms_norm
from specdec.lm.linear import Linear, make_linear
from specdec.lm.loading import DTYPES, serve_model
from specdec.lm.networks import AUTO
from specdec.lm.runner import Runner

_LAYER = "layer."
OUTPUT = (1,)  # the layers whose hidden states `Runner.compute` gives: the next feature, as the head estimates it


class EagleModel:
    """`specdec.lm.heads.EagleHead` in parts: `gather` and `mix` here, the layer, the target's final norm and head by
    `runner`, whose rows are to be given `mix`'s output as inputs.

    A row has the target's feature at one position, or its estimate, and the token at the next; the logits are those of
    the token behind that. Only distances between rows matter to rotary embeddings, so a sequence may begin anywhere in
    the context."""

    def __init__(self, model: FeatureModel, kv_tokens: int, network: str = AUTO) -> None:
        """kv_tokens: rows that may be held at the same time. Raises ConfigError for a folder that lacks weights or has
        others, and for a network that cannot serve."""
        self.parts = model
        self.columns = model.target.columns
        self._embedding = model.target.embedding
        self._eps = float(model.target.config.rms_norm_eps)
        self._fuse = self._linear("fuse")
        self._project = self._linear("project") if len(model.layers) > 1 else None
        self._norms = [self._tensor(f"norm_{of}.weight").float() for of in ("feature", "embedding")]
        loaded = serve_model(
            self._decoder(),
            str(model.folder.path),
            dtype=model.dtype,
            device=model.device,
            network=network,
            tokenizer=model.path,
        )
        self.runner = Runner(loaded, kv_tokens)

    def gather(self, features: FeatureRows) -> torch.Tensor:
        """float32[rows, H], g of the target's features. Raises InvalidArgument for rows of another size."""
        hidden = self.parts.decode(features)
        if self._project is None:
            return hidden[:, 0]
        with torch.inference_mode():
            g: torch.Tensor = self._project(hidden.flatten(1).to(self._embedding.dtype))
        return g.float()

    def mix(self, g: torch.Tensor, token_ids: Ids) -> torch.Tensor:
        """float32[rows, H], the layer's inputs. g: float32[rows, H]; token_ids: uint32[rows], after each."""
        ids = torch.from_numpy(token_ids.astype(np.int64)).to(g.device)
        with torch.inference_mode():
            embedded = functional.embedding(ids, self._embedding)
            pairs = zip((g, embedded), self._norms, strict=True)
            both = torch.cat([rms_norm(x, weight, self._eps) for x, weight in pairs], dim=-1)
            mixed: torch.Tensor = self._fuse(both.to(self._embedding.dtype))
        return mixed.float()

    def _linear(self, name: str) -> Linear:
        bias = self.parts.folder.tensors.get(f"{name}.bias")
        given = None if bias is None else served(bias, self.parts.dtype, self.parts.device)
        return make_linear(self._tensor(f"{name}.weight"), given, self.parts.dtype)

    def _tensor(self, name: str) -> torch.Tensor:
        folder = self.parts.folder
        if name not in folder.tensors:
            raise ConfigError("drafters", str(folder.path), f"model.safetensors has no {name}")
        return served(folder.tensors[name], self.parts.dtype, self.parts.device)

    def _decoder(self) -> Any:
        """A causal LM of one layer, without an embedding, between the target's final norm and head."""
        target, folder = self.parts.target, self.parts.folder
        config = decoder_config(target.config)
        config.num_hidden_layers, config.tie_word_embeddings = 1, False
        model: Any = AutoModelForCausalLM.from_config(config, dtype=DTYPES[self.parts.dtype])  # type: ignore[no-untyped-call]
        model.eval().requires_grad_(False).to(self.parts.device)
        weights = {
            name.removeprefix(_LAYER): served(tensor, self.parts.dtype, self.parts.device)
            for name, tensor in folder.tensors.items()
            if name.startswith(_LAYER)
        }
        try:
            model.model.layers[0].load_state_dict(weights)
        except RuntimeError as error:
            problem = f"its layer is not one of the target's: {str(error).splitlines()[-1].strip()}"
            raise ConfigError("drafters", str(folder.path), problem) from error
        model.model.norm.weight = _frozen(target.norm)
        model.lm_head = nn.Linear(1, 1, bias=False)
        model.lm_head.weight = _frozen(target.head)
        model.lm_head.out_features, model.lm_head.in_features = target.head.shape
        model.model.embed_tokens = None
        model.config.vocab_size = len(target.head)
        return model


def _frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
