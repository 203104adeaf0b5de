"""Loading a causal LM as it is served: dtype, depth, identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.utils import logging
from transformers.utils.hub import cached_file

from specdec.core.errors import ConfigError
from specdec.core.tokenizer_hash import tokenizer_hash, tokenizer_vocab_size
from specdec.lm.network import Network
from specdec.lm.networks import AUTO, Dtype, build_network

__all__ = ["DTYPES", "Dtype", "LoadedModel", "load_model"]

# What activations and KV are held in; int8 weights are rounded from bfloat16 ones.
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.bfloat16}
_SAMPLES = 64  # values of each weight that enter the fingerprint
_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for `Runner`, and what tells it from others.

    vocab_size: ids the tokenizer knows, at most the padded width of the embedding. tokenizer_hash: of the id
    -> token table. fingerprint: of the weights as served; another dtype or depth is another model.
    base_fingerprint: of the weights as they are in the folder, the same for every dtype. num_layers: as served;
    hidden_size: of the residual stream."""

    network: Network
    name: str
    vocab_size: int
    tokenizer_hash: str
    fingerprint: str
    base_fingerprint: str
    dtype: Dtype
    num_layers: int
    hidden_size: int
    max_context: int
    eos_ids: tuple[int, ...]
    device: str


def load_model(
    path: str, *, dtype: Dtype, device: str, num_layers: int | None = None, network: str = AUTO
) -> LoadedModel:
    """Load a `transformers` causal LM by folder or hub name (HF_HUB_OFFLINE is respected, remote code never
    runs).

    dtype: of weights, activations and KV; "int8": weights of int8 with a scale per output channel, the rest bfloat16.
    num_layers: serve a truncated copy, the first layers with the model's own final norm and head.
    network: what computes it, one of `specdec.lm.networks.NETWORKS`, or "auto".

    Raises ConfigError naming what cannot work: an unknown dtype, device or network, a depth the model does not have, a
    path that is no model, an architecture whose attention cannot be replaced."""
    check_dtype(dtype)
    model = read_weights(path, read_config(path, num_layers), dtype, device)
    return serve_model(model, path, dtype=dtype, device=device, network=network)


def check_dtype(dtype: str) -> None:
    """Raises ConfigError."""
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"choose one of {', '.join(DTYPES)}")


def serve_model(
    model: PreTrainedModel, path: str, *, dtype: Dtype, device: str, network: str = AUTO, tokenizer: str | None = None
) -> LoadedModel:
    """Takes the weights over from `model`, which is of no use afterwards. path: where it comes from, for its name.
    tokenizer: folder or hub name of its vocabulary, None: `path`. The rest as for `load_model`."""
    config: Any = model.config
    vocab_size, tokenizer_hash = read_vocabulary(tokenizer or path, int(config.vocab_size))
    fingerprint, base_fingerprint = _fingerprint(model, dtype), _fingerprint(model, None)
    eos_ids = _end_ids(getattr(model, "generation_config", None), config)
    return LoadedModel(
        network=build_network(network, model, dtype),
        name=Path(path).name if Path(path).is_dir() else path,
        vocab_size=vocab_size,
        tokenizer_hash=tokenizer_hash,
        fingerprint=fingerprint,
        base_fingerprint=base_fingerprint,
        dtype=dtype,
        num_layers=int(config.num_hidden_layers),
        hidden_size=int(config.hidden_size),
        max_context=int(config.max_position_embeddings),
        eos_ids=eos_ids,
        device=device,
    )


def read_config(path: str, num_layers: int | None) -> Any:
    """The model's configuration, cut to its first num_layers layers. Raises ConfigError."""
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        remedy = f"neither a model folder nor a reachable hub name: {_headline(error)}"
        raise ConfigError("model", path, remedy) from error
    if num_layers is not None:
        if not 1 <= num_layers <= config.num_hidden_layers:
            raise ConfigError("num_layers", num_layers, f"the model has {config.num_hidden_layers} layers")
        config.num_hidden_layers = num_layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:num_layers]
    return config


def read_weights(
    path: str, config: Any, dtype: Dtype, device: str, tensors: Mapping[str, torch.Tensor] | None = None
) -> PreTrainedModel:
    """The model of `transformers`, not to be trained. tensors: its weights by name, instead of those that lie at
    `path`. Raises ConfigError."""
    try:
        with _quietly():
            model: Any
            if tensors is None:
                model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=DTYPES[dtype])
            else:
                kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
                model = kind.from_pretrained(None, config=config, dtype=DTYPES[dtype], state_dict=dict(tensors))
            model.to(device)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ConfigError("model", path, f"cannot be loaded: {_headline(error)}") from error
    model.eval().requires_grad_(False)
    return model  # type: ignore[no-any-return]


@contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars, and no complaint about the weights that a truncated copy leaves out on purpose."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def read_vocabulary(path: str, width: int) -> tuple[int, str]:
    """Size and hash of the tokenizer; without one, the width of the embedding and the hash of nothing."""
    file = cached_file(path, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    if file is None:
        return width, hashlib.sha256(b"").hexdigest()
    text = Path(file).read_text(encoding="utf-8")
    return min(width, tokenizer_vocab_size(text)), tokenizer_hash(text)


def _fingerprint(model: PreTrainedModel, dtype: Dtype | None) -> str:
    """sha256 over the configuration, every weight's name and shape, and evenly spaced values of each. dtype: what the
    weights are served in; None: whatever it is, values are rounded to bfloat16, the coarsest that a model is loaded
    in."""
    digest = hashlib.sha256()
    config = {k: v for k, v in model.config.to_dict().items() if k not in _VOLATILE}
    digest.update(json.dumps([dtype, config], sort_keys=True, default=str).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        flat = weight.reshape(-1)
        spread = torch.linspace(0, len(flat) - 1, _SAMPLES, dtype=torch.float64).long()
        samples = flat[spread.to(flat.device)]
        digest.update((samples if dtype else samples.bfloat16()).float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _headline(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def read_end_ids(path: str) -> tuple[int, ...]:
    """The ids that end a text, by the generation settings of a folder or hub name, else its configuration."""
    try:
        generation: Any = GenerationConfig.from_pretrained(path)
    except OSError:
        generation = None
    return _end_ids(generation, read_config(path, None))


def read_special_ids(path: str) -> tuple[int, ...]:
    """The special tokens of its tokenizer, if it has one: those that end a turn are among them."""
    file = cached_file(path, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    spec = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    return tuple(int(added["id"]) for added in spec.get("added_tokens") or () if added["special"])


def _end_ids(generation: Any, config: Any) -> tuple[int, ...]:
    ids = getattr(generation, "eos_token_id", None)
    ids = config.eos_token_id if ids is None else ids
    return tuple(ids) if isinstance(ids, (list, tuple)) else () if ids is None else (int(ids),)
