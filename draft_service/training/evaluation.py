"""How good a draft is on held-out text: its exact acceptance, not a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from draft_service.training.draft import Draft, Judged, alphas
from draft_service.training.losses import ROWS
from draft_service.training.rows import Rows

BATCH = 4  # rows
RANKS = 10  # candidates per step whose accuracy is told


@dataclass(frozen=True, slots=True)
class Evaluation:
    """alpha: per step, exact acceptance at temperature 1, mean over positions: the first is a draft token after known
    ones, a later one follows the draft's own. error: of the first, one standard error, positions taken as independent.
    accuracies: per step and rank, how often the candidate of that rank is the target's choice, in expectation over the
    target's law. positions: judged at the first step."""

    alpha: tuple[float, ...]
    error: float
    accuracies: tuple[tuple[float, ...], ...]
    positions: int


@torch.inference_mode()
def evaluate(draft: Draft, head: torch.Tensor, rows: Rows, tokens: int, steps: int, device: torch.device) -> Evaluation:
    """On the first `tokens` tokens of `rows`. The law is the target's over its whole vocabulary: what it has outside
    the head's ids counts as rejected."""
    module = cast(nn.Module, draft)
    module.eval()
    wanted = min(len(rows), max(1, tokens // rows.length))
    found: list[list[torch.Tensor]] = [[] for _ in range(steps)]
    ranks: list[list[torch.Tensor]] = [[] for _ in range(steps)]
    for first in range(0, wanted, BATCH):
        batch = rows.batch(range(first, min(first + BATCH, wanted))).to(device)
        for step, judged in enumerate(draft.judge(batch, steps)):
            found[step].append(alphas(judged, head).cpu())
            ranks[step].append(_ranked(judged, head).cpu())
    module.train()
    each = [torch.cat(parts).double() for parts in found if parts]
    first_step = each[0]
    error = float(first_step.std() / max(1, len(first_step)) ** 0.5) if len(first_step) > 1 else 0.0
    accuracies = tuple(tuple(torch.cat(parts).double().mean(0).tolist()) for parts in ranks if parts)
    return Evaluation(tuple(float(part.mean()) for part in each), error, accuracies, len(first_step))


def _ranked(judged: Judged, head: torch.Tensor) -> torch.Tensor:
    """float32[n, RANKS]: what the target gives to the draft's candidates, likeliest first."""
    exact = head.float()
    count = min(RANKS, len(exact))
    parts = [torch.zeros(0, count, device=exact.device)]
    pieces = [torch.split(each, ROWS) for each in (judged.states, judged.target, judged.logsumexp)]
    for states, target, logsumexp in zip(*pieces, strict=True):
        best = (states.float() @ exact.T).topk(count).indices
        parts.append(((target.float() @ exact.T) - logsumexp[:, None]).gather(1, best).exp())
    return torch.cat(parts)
