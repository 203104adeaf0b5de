"""Memory of a subject whose model is on a GPU."""

from __future__ import annotations

import torch

from benchmarks.subjects.protocol import Handlers


def memory_of(device: str) -> Handlers:
    """On a GPU the answer to `memory`, in which no library counts; on CPU the common one stays."""
    if torch.device(device).type == "cpu":
        return {}
    return {"memory": lambda: {"peak": torch.cuda.max_memory_allocated(device), "libraries": 0}}
