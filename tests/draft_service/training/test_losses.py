from __future__ import annotations

import pytest
import torch

from draft_service.training.losses import Mix, acceptance, head_loss, loss_and_gradient

MIXES = [Mix(kl=1.0), Mix(tv=1.0), Mix(log_alpha=1.0), Mix(kl=0.5, tv=0.3, log_alpha=0.2)]


def laws(rows: int = 5, columns: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of which a part lies elsewhere, and logits of q."""
    generator = torch.Generator().manual_seed(3)
    log_p = torch.randn(rows, columns + 4, generator=generator, dtype=torch.float64).mul(2).log_softmax(-1)
    return log_p[:, :columns], torch.randn(rows, columns, generator=generator, dtype=torch.float64).mul(2)


def plain_loss(log_p: torch.Tensor, logits: torch.Tensor, mix: Mix) -> torch.Tensor:
    p, q = log_p.exp(), logits.softmax(-1)
    alpha = torch.minimum(p, q).sum(-1)
    return mix.kl * (p * (log_p - q.log())).sum(-1) + mix.tv * (1 - alpha) - mix.log_alpha * alpha.log()


@pytest.mark.parametrize("mix", MIXES)
def test_losses_and_their_gradients_are_those_of_their_definitions(mix: Mix) -> None:
    log_p, logits = laws()
    logits.requires_grad_(True)
    expected = plain_loss(log_p, logits, mix)
    torch.autograd.backward(expected.sum())
    loss, gradient = loss_and_gradient(log_p, logits.detach(), mix)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, logits.grad)


def test_acceptance_is_one_only_where_the_law_is_the_target_s() -> None:
    log_p, logits = laws()
    whole = log_p.log_softmax(-1)
    torch.testing.assert_close(acceptance(whole, whole), torch.ones(5, dtype=torch.float64))
    # What the target has outside the columns is lost, even to the best of drafts.
    torch.testing.assert_close(acceptance(log_p, log_p), log_p.exp().sum(-1))
    assert (acceptance(whole, logits) < 1).all()


@pytest.mark.parametrize("mix", MIXES)
def test_a_loss_computed_in_pieces_is_the_loss(mix: Mix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draft_service.training.losses.ROWS", 3)
    generator = torch.Generator().manual_seed(1)
    x, target, head = (torch.randn(shape, generator=generator) for shape in ((8, 6), (8, 6), (13, 6)))
    logsumexp = (target @ head.T).logsumexp(-1) + 0.3
    x.requires_grad_(True)
    torch.autograd.backward(2 * plain_loss(target @ head.T - logsumexp[:, None], x @ head.T, mix).sum())
    expected, x.grad = x.grad, None
    torch.autograd.backward(2 * head_loss(x, target, logsumexp, head, mix))
    torch.testing.assert_close(x.grad, expected)


def test_no_row_is_no_loss() -> None:
    x = torch.zeros(0, 6, requires_grad=True)
    loss = head_loss(x, torch.zeros(0, 6), torch.zeros(0), torch.ones(4, 6), Mix(kl=1.0))
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0
