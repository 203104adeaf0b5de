"""A run on disk: all that going on needs, replaced as a whole or not at all; and the learning curve beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.core.errors import ConfigError

CURVES = "curves.json"


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """step: the next one. seconds: trained so far. tokens: judged so far."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


class RunFolder:
    """recipe: what must be equal for a run to go on: another recipe makes other drafts."""

    def __init__(self, path: Path, recipe: dict[str, Any], *, writes: bool = True) -> None:
        """writes: of several processes only one does."""
        self._path, self._recipe, self._writes = path, recipe, writes
        self._file = path / "checkpoint.pt"
        self._curve: list[dict[str, Any]] = []
        path.mkdir(parents=True, exist_ok=True)

    @property
    def curve(self) -> list[dict[str, Any]]:
        """One object per evaluation, see `Trainer`."""
        return list(self._curve)

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Position:
        """Into model and optimizer; the beginning, if nothing was saved. Raises ConfigError for a run of another
        recipe."""
        if not self._file.exists():
            return Position()
        held = torch.load(self._file, map_location=device, weights_only=True)
        if held["recipe"] != self._recipe:
            differing = sorted(k for k in self._recipe if held["recipe"].get(k) != self._recipe[k])
            remedy = f"holds a run with other {', '.join(differing)}: give another --run-folder, or --fresh"
            raise ConfigError("run_folder", str(self._path), remedy)
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        torch.set_rng_state(held["rng"].cpu())
        self._curve = held["curve"]
        return Position(**held["position"])

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, position: Position) -> None:
        """Checkpoint and curve."""
        if not self._writes:
            return
        held = {
            "recipe": self._recipe,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "position": {"step": position.step, "seconds": position.seconds, "tokens": position.tokens},
            "curve": self._curve,
        }
        scratch = self._file.with_suffix(".new")
        torch.save(held, scratch)
        scratch.replace(self._file)
        scratch = self._path / f"{CURVES}.new"
        scratch.write_text(json.dumps(self._curve, indent=1) + "\n")
        scratch.replace(self._path / CURVES)

    def add(self, point: dict[str, Any]) -> None:
        """To the curve; written with the next checkpoint."""
        self._curve.append(point)

    def forget(self) -> None:
        """Whatever was saved, so that `load` finds nothing."""
        if self._writes:
            self._file.unlink(missing_ok=True)
