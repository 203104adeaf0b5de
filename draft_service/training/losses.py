"""What a draft is trained on: the target's law p at temperature 1 against its own q, over the columns of its head.

Acceptance is alpha = sum_v min(p_v, q_v) = 1 - TV(p, q) (Leviathan et al. 2023). Columns are a part of the vocabulary:
p sums to at most 1 there, q to 1, and what p has elsewhere is lost. Gradients are with respect to q's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

ROWS = 256  # rows whose logits are held at a time


@dataclass(frozen=True, slots=True)
class Mix:
    """Weights of the losses: kl is KL(p || q), tv is 1 - alpha, log_alpha is -log alpha."""

    kl: float = 0.0
    tv: float = 0.0
    log_alpha: float = 0.0

    def blend(self, other: Mix, share: float) -> Mix:
        """This one and `share` of the other."""
        pairs = ((self.kl, other.kl), (self.tv, other.tv), (self.log_alpha, other.log_alpha))
        return Mix(*((1 - share) * a + share * b for a, b in pairs))


LOSSES = {"kl": Mix(kl=1.0), "tv": Mix(tv=1.0), "log-alpha": Mix(log_alpha=1.0), "kl+tv": Mix(kl=0.5, tv=1.0)}


def acceptance(log_p: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """alpha of each row, [n]. log_p: [n, C], of the target's law over the whole vocabulary; logits: [n, C], of q."""
    return torch.minimum(log_p.exp(), logits.softmax(-1)).sum(-1)


def loss_and_gradient(log_p: torch.Tensor, logits: torch.Tensor, mix: Mix) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each row, [n], and its gradient [n, C]. Shapes as of `acceptance`.

    d KL / dz = P q - p with P = sum p; d alpha / dz_j = q_j ([q_j < p_j] - sum_k q_k [q_k < p_k])."""
    p = log_p.exp()
    log_q = logits.log_softmax(-1)
    q = log_q.exp()
    loss = torch.zeros(len(p), dtype=q.dtype, device=q.device)
    gradient = torch.zeros_like(q)
    if mix.kl:
        loss += mix.kl * (p * (log_p - log_q)).sum(-1)
        gradient.addcmul_(p.sum(-1, keepdim=True), q, value=mix.kl).sub_(p, alpha=mix.kl)
    if mix.tv or mix.log_alpha:
        alpha = torch.minimum(p, q).sum(-1)
        below = q * (q < p)
        rise = below.addcmul_(below.sum(-1, keepdim=True), q, value=-1.0)
        loss += mix.tv * (1 - alpha) - mix.log_alpha * alpha.log()
        gradient -= (mix.tv + mix.log_alpha / alpha)[:, None] * rise
    return loss, gradient


def head_loss(
    x: torch.Tensor, target: torch.Tensor, logsumexp: torch.Tensor, head: torch.Tensor, mix: Mix
) -> torch.Tensor:
    """Sum of the losses of all rows. x, target: [n, H], the draft's and the target's states after the final norm;
    logsumexp: float32[n], of the target's logits over the whole vocabulary; head: [C, H], frozen. Only x has a
    gradient. Logits are computed in the head's dtype, ROWS at a time, forward and backward at once: they are never
    all in memory."""
    return _HeadLoss.apply(x, target, logsumexp, head, mix)  # type: ignore[no-untyped-call,no-any-return]


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, target: torch.Tensor, logsumexp: torch.Tensor, head: torch.Tensor, mix: Mix
    ) -> torch.Tensor:
        total = torch.zeros((), device=x.device)
        gradient = torch.empty_like(x)
        for first in range(0, len(x), ROWS):
            part = slice(first, first + ROWS)
            logits = (x[part].to(head.dtype) @ head.T).float()
            log_p = (target[part].to(head.dtype) @ head.T).float() - logsumexp[part, None]
            loss, slope = loss_and_gradient(log_p, logits, mix)
            total += loss.sum()
            gradient[part] = slope.to(head.dtype) @ head
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None, None
