"""Draft folders: what was trained to draft for one target, without anything that is the target's own.

draft.json: flat settings, what it is and for which target. model.safetensors: bfloat16 tensors; or int8 rows, each
matrix with a float32 `NAME.scale` per output channel. README.md: the card, with data, steps and measured acceptance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from specdec.core.errors import ConfigError
from specdec.lm.linear import dequantise, quantise

KINDS = ("lm", "medusa", "eagle")
SETTINGS, WEIGHTS, CARD = "draft.json", "model.safetensors", "README.md"
_SCALE = ".scale"
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "kind": str,
    "target": str,
    "target_base_fingerprint": str,
    "tokenizer_hash": str,
    "hidden_size": int,
    "vocab_size": int,
    "head_ids": (str, type(None)),
}


@dataclass(frozen=True, slots=True, eq=False)
class DraftFolder:
    """kind: one of KINDS. settings: draft.json, `kind` included. tensors: float32, by their names in the file; of int8
    rows what they stand for."""

    path: Path
    kind: str
    settings: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    @property
    def head_ids(self) -> str | None:
        """The ids that its head is cut to, as `specdec.lm.id_map.read_head_ids` takes them; None: all."""
        spec = self.settings["head_ids"]
        return spec if spec is None or spec.startswith("first:") else str(self.path / spec)


def is_draft_folder(path: str | Path) -> bool:
    return (Path(path) / SETTINGS).is_file()


def read_draft_folder(path: str | Path) -> DraftFolder:
    """Raises ConfigError naming the folder and what is missing in it or malformed."""
    folder = Path(path)
    settings = read_settings(folder)
    try:
        stored = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ConfigError("draft", str(folder), f"{WEIGHTS} cannot be read: {error}") from error
    return DraftFolder(folder, settings["kind"], settings, _plain(stored, folder))


def read_settings(folder: Path) -> dict[str, Any]:
    """draft.json. Raises ConfigError."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("draft", str(folder), f"no draft folder: {SETTINGS} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError("draft", str(folder), f"{SETTINGS} must hold one object")
    _check(settings, folder)
    return settings


def write_draft_folder(
    path: str | Path, settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], card: str, int8: bool
) -> None:
    """Make the folder, or write over the files of one that is there. int8: matrices are rounded to int8 rows, all
    else to bfloat16 as everything is without it. card: Markdown.

    Raises ConfigError if the settings lack a field or have one of the wrong type."""
    folder = Path(path)
    _check(settings, folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        assert not name.endswith(_SCALE), f"{name}: the ending is that of scales"
        if int8 and tensor.dim() == 2:
            stored[name], stored[name + _SCALE] = quantise(tensor.detach().cpu())
        else:
            stored[name] = tensor.detach().cpu().to(torch.bfloat16).contiguous().clone()
    save_file(stored, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # whatever the library thinks: services run as other users than trainers
    (folder / SETTINGS).write_text(json.dumps(dict(settings), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")


def _check(settings: Mapping[str, Any], folder: Path) -> None:
    for name, kind in _TYPES.items():
        if name not in settings:
            raise ConfigError("draft", str(folder), f"{SETTINGS} has no {name}")
        if not isinstance(settings[name], kind) or isinstance(settings[name], bool):
            raise ConfigError("draft", str(folder), f"{SETTINGS}: {name} = {settings[name]!r} is of the wrong type")
    if settings["kind"] not in KINDS:
        raise ConfigError("draft", str(folder), f"{SETTINGS}: kind = {settings['kind']!r}, not one of {KINDS}")
    if settings["kind"] == "lm" and not isinstance(settings.get("config"), dict):
        raise ConfigError("draft", str(folder), f"{SETTINGS}: a draft LM needs `config`, an object of transformers")


def _plain(stored: Mapping[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """float32 of everything; scales are used up."""
    plain = {}
    for name, tensor in stored.items():
        if name.endswith(_SCALE):
            continue
        if tensor.dtype != torch.int8:
            plain[name] = tensor.float()
        elif name + _SCALE in stored:
            plain[name] = dequantise(tensor, stored[name + _SCALE])
        else:
            raise ConfigError("draft", str(folder), f"{WEIGHTS}: {name} is int8 and has no {name}{_SCALE}")
    return plain
