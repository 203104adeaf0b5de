"""What drafters that read the target's hidden states are made of: a draft folder, and the target's own embeddings,
final norm and head."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from draft_service.drafters import DraftModel
from specdec.core.errors import ConfigError
from specdec.core.features import FeatureRows
from specdec.lm.draft_folder import DraftFolder, read_draft_folder
from specdec.lm.features import decode
from specdec.lm.id_map import IdMap, read_head_ids
from specdec.lm.loading import DTYPES, check_dtype, read_config, read_vocabulary, read_weights
from specdec.lm.networks import Dtype

if TYPE_CHECKING:
    from draft_service.config import DraftConfig


@dataclass(frozen=True, slots=True, eq=False)
class TargetParts:
    """config: of transformers. embedding: [padded vocabulary, H]; norm: [H], of the final RMSNorm, and its eps;
    head: [columns, H], the rows of `id_map`'s ids, all of them if there is none. vocab_size: of the tokenizer."""

    config: Any
    embedding: torch.Tensor
    norm: torch.Tensor
    eps: float
    head: torch.Tensor
    id_map: IdMap | None
    vocab_size: int
    tokenizer_hash: str
    eos_ids: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Of the head's logits, those that stand for tokens."""
        return self.vocab_size if self.id_map is None else len(self.id_map)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureModel:
    """A draft folder beside its target, whose own folder or hub name is `path`. layers: of the target, after which the
    features are taken, rising."""

    folder: DraftFolder
    target: TargetParts
    path: str
    layers: tuple[int, ...]
    dtype: Dtype
    device: str

    @property
    def hidden_size(self) -> int:
        return int(self.target.config.hidden_size)

    def decode(self, features: FeatureRows) -> torch.Tensor:
        """float32[rows, layers, H]. Raises InvalidArgument."""
        hidden = decode(features.data, len(self.layers), self.hidden_size)
        return torch.from_numpy(np.ascontiguousarray(hidden)).to(self.device)

    def identity(self, *, tree: bool, max_context: int) -> DraftModel:
        """max_context: in tokens, 0: no limit but the target's."""
        target, limit = self.target, int(self.target.config.max_position_embeddings)
        return DraftModel(
            name=self.folder.path.name,
            fingerprint=_fingerprint(self.folder.tensors, self.dtype),
            vocab_size=target.vocab_size,
            tokenizer_hash=target.tokenizer_hash,
            dtype=self.dtype,
            max_context=min(limit, max_context or limit),
            eos_ids=target.eos_ids,
            tree=tree,
            feature_layers=self.layers,
            feature_size=self.hidden_size,
            target_base_fingerprint=str(self.folder.settings["target_base_fingerprint"]),
        )


def read_feature_model(path: str, kind: str, config: DraftConfig) -> FeatureModel:
    """The draft folder at `path`, and of `config.target_model` what it shares with it.

    Raises ConfigError where the folder is not of this kind, or was made for another target than this."""
    assert config.target_model is not None, "checked by the configuration"
    dtype = config.precision
    check_dtype(dtype)
    folder = read_draft_folder(path)
    if folder.kind != kind:
        raise ConfigError("drafters", path, f"holds a draft of kind {folder.kind}, not {kind}")
    target = read_target_parts(config.target_model, folder, dtype, config.device)
    depth = int(target.config.num_hidden_layers)
    layers = tuple(folder.settings.get("feature_layers") or (depth,))
    if list(layers) != sorted(set(layers)) or not all(0 <= layer <= depth for layer in layers):
        raise ConfigError("drafters", path, f"feature_layers {list(layers)} do not rise within 0..{depth}")
    return FeatureModel(folder, target, config.target_model, layers, dtype, config.device)


def read_target_parts(path: str, folder: DraftFolder, dtype: Dtype, device: str) -> TargetParts:
    """Reads none of the target's layers. Raises ConfigError where width or vocabulary are not those of `folder`."""
    config = read_config(path, None)
    vocab_size, tokenizer_hash = read_vocabulary(path, int(config.vocab_size))
    found = {"hidden_size": config.hidden_size, "vocab_size": vocab_size, "tokenizer_hash": tokenizer_hash}
    for name, value in found.items():
        if folder.settings[name] != value:
            remedy = f"was made for a target with {name} {folder.settings[name]}; {path} has {value}"
            raise ConfigError("drafters", str(folder.path), remedy)
    shell: Any = read_weights(path, _without_layers(config), dtype, device)
    norm = shell.model.norm
    eos_ids = _eos_ids(shell)
    id_map = None
    head = shell.lm_head.weight.detach()
    if folder.head_ids is not None:
        id_map = IdMap(read_head_ids(folder.head_ids, vocab_size, eos_ids))
        head = head[torch.from_numpy(id_map.target_ids.astype(np.int64)).to(device)]
    embedding = shell.model.embed_tokens.weight.detach()
    eps = float(norm.variance_epsilon)
    return TargetParts(config, embedding, norm.weight.detach(), eps, head, id_map, vocab_size, tokenizer_hash, eos_ids)


def read_accuracies(folder: DraftFolder) -> tuple[tuple[float, ...], ...]:
    """Setting `accuracies`: for each depth, how often the candidate of each rank was right, measured in training; ()
    where nothing was measured. Raises ConfigError."""
    try:
        return tuple(tuple(min(1.0, max(0.0, float(a))) for a in row) for row in folder.settings.get("accuracies", ()))
    except (TypeError, ValueError) as error:
        raise ConfigError("drafters", str(folder.path), f"accuracies are no lists of numbers: {error}") from error


def _without_layers(config: Any) -> Any:
    cut = copy.deepcopy(config)
    cut.num_hidden_layers = 0
    if getattr(cut, "layer_types", None):
        cut.layer_types = []
    return cut


def served(tensor: torch.Tensor, dtype: Dtype, device: str) -> torch.Tensor:
    """A tensor of a draft folder as it is computed with."""
    return tensor.to(device, DTYPES[dtype])


def _eos_ids(model: Any) -> tuple[int, ...]:
    ids = getattr(model.generation_config, "eos_token_id", None)
    ids = model.config.eos_token_id if ids is None else ids
    return tuple(ids) if isinstance(ids, (list, tuple)) else () if ids is None else (int(ids),)


def _fingerprint(tensors: Mapping[str, torch.Tensor], dtype: Dtype) -> str:
    digest = hashlib.sha256(dtype.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
