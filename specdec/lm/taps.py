"""Hidden states on their way out of a forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def tapped(states: Sequence[torch.Tensor], rows: torch.Tensor, size: int) -> torch.Tensor:
    """states: the residual stream between layers, [total, size] each; rows: int64[n].

    Returns float32[n, len(states), size]."""
    if not states:
        return torch.empty((len(rows), 0, size), device=rows.device)
    return torch.stack([state.index_select(0, rows).float() for state in states], dim=1)
