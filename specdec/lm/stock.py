"""`transformers`' own modules over paged KV: the oracle of the other networks, and what serves where they cannot.

All rows form one packed row [1, total] with explicit positions. `transformers` hands every layer's queries, keys and
values to `_attend`, registered as attention "specdec"."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel

from specdec.core.errors import ConfigError
from specdec.lm.attention import RaggedAttention
from specdec.lm.linear import PlainLinear, make_linear
from specdec.lm.mapped import unload
from specdec.lm.network import KVShape
from specdec.lm.networks import Dtype, Unsupported
from specdec.lm.ragged import RaggedBatch
from specdec.lm.taps import tapped
from specdec.lm.torch_kv import TorchKV

ATTENTION = "specdec"


def build(model: PreTrainedModel, dtype: Dtype) -> StockNetwork:
    """Takes the model over: its linears give way to those of `specdec.lm.linear`. Raises Unsupported for a family whose
    attention cannot be replaced."""
    if not model._supports_attention_backend:
        raise Unsupported(f"the attention of {type(model).__name__} cannot be replaced")
    model.set_attn_implementation(ATTENTION)
    replace_linears(model, dtype)
    return StockNetwork(model)


def replace_linears(module: nn.Module, dtype: Dtype) -> None:
    """Every `nn.Linear` below `module` gives way to the variant that serves `dtype`, one at a time: each weight is
    freed before the next is packed. A head tied to the embedding is packed beside it: the table stays, so that such a
    model takes vocabulary x hidden elements more than its parameters."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, linear := make_linear(child.weight, child.bias, dtype))
            if type(linear) is not PlainLinear:
                unload([child.weight])
        else:
            replace_linears(child, dtype)


class StockNetwork:
    """See `specdec.lm.network.Network`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.kv_shape = kv_shape(model)

    def new_storage(self, num_blocks: int) -> TorchKV:
        return TorchKV(self.kv_shape, num_blocks)

    def forward(
        self, batch: RaggedBatch, storage: TorchKV, layers: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Network.forward`. Raises ConfigError for attention that is more than scaled dot products over a causal
        or sliding window, and for hidden states of a model whose layers are not where those of most are."""
        device = storage.data.device
        if batch.inputs is None:
            first = {"input_ids": torch.from_numpy(batch.input_ids).to(device)[None]}
        else:
            first = {"inputs_embeds": batch.inputs.to(device, self.model.dtype)[None]}
        with _Taps(self.model, layers, torch.from_numpy(batch.tapped_rows).to(device)) as taps:
            logits = self.model(
                **first,
                position_ids=torch.from_numpy(batch.position_ids).to(device)[None],
                use_cache=False,
                logits_to_keep=torch.from_numpy(batch.wanted_rows).to(device),
                ragged=RaggedAttention(batch, storage),
            ).logits[0]
        return cast(torch.Tensor, logits.float()), taps.hidden()


class _Taps:
    """While entered, keeps what passes between the layers of a model."""

    def __init__(self, model: PreTrainedModel, layers: tuple[int, ...], rows: torch.Tensor) -> None:
        self._layers, self._rows = layers, rows
        self._kept: dict[int, torch.Tensor] = {}
        self._size = int(model.config.hidden_size)
        self._modules: Any = _layers(model) if layers else ()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> _Taps:
        for layer in self._layers:
            if layer:
                hook = self._modules[layer - 1].register_forward_hook(
                    lambda _, __, output, at=layer: self._keep(at, output[0] if isinstance(output, tuple) else output)
                )
            else:
                hook = self._modules[0].register_forward_pre_hook(lambda _, inputs: self._keep(0, inputs[0]))
            self._hooks.append(hook)
        return self

    def __exit__(self, *unused: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, layer: int, hidden: torch.Tensor) -> None:
        self._kept[layer] = hidden[0]

    def hidden(self) -> torch.Tensor:
        """float32[tapped, layers, hidden]."""
        return tapped([self._kept[layer] for layer in self._layers], self._rows, self._size)


def _layers(model: Any) -> Any:
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None:
        raise ConfigError("model", type(model).__name__, "its hidden states are not served: choose another target")
    return layers


def kv_shape(model: PreTrainedModel) -> KVShape:
    """What the model's layers hand to attention: one row per token and layer, as the configuration says."""
    config = model.config
    heads = config.num_attention_heads
    return KVShape(
        layers=config.num_hidden_layers,
        heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=model.dtype,
        device=model.device,
    )


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    ragged: RaggedAttention,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer. query: [1, heads, total, D], key and value: [1, kv_heads, total, D], rope
    applied. Returns [1, total, heads * D].

    Raises ConfigError for attention that is more than scaled dot products over a causal or sliding window."""
    if softcap is not None or s_aux is not None:
        raise ConfigError("model", type(module).__name__, "attention with soft caps or sinks is not served")
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return ragged.attend(cast(int, module.layer_idx), query, key, value, sliding_window, scaling)[None], None


AttentionInterface.register(ATTENTION, _attend)
