"""Block verification of sampled chains: "Block Verification Accelerates Speculative Decoding" (Sun et al. 2024;
algorithms.md, section 4). In expectation it accepts at least as much as the token rule on every chain.

A prefix x_1..x_i is worth pi_i, the chance that an ideal coupling of blocks keeps it; given those tokens it is kept
with exactly that chance, whatever stands behind it. Therefore the alphas along the accepted prefix have the mean that
they have at texts of the target's own law, just as under the token rule: what decides whether position i is recorded
is independent of everything at i and behind."""

from __future__ import annotations

import math

import numpy as np

from specdec.core.acceptance import Acceptance, Floats, normalised, recovered, require_laws
from specdec.core.draft import Draft
from specdec.core.verification import Verification


def block_rule(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """Accepts up to the *last* position whose number is below its chance: earlier failures do not count.

    draft: a sampled chain. uniforms: float64[nodes], the ACCEPT numbers: number i judges node i, number 0 draws from
    the residual."""
    require_laws(draft, verification)
    tree = draft.tree
    assert tree.is_chain, "block verification judges chains: trees are for traversal verification"
    laws = [normalised(target) for target in verification.laws]
    log_pi, k = block_weights(draft, laws), tree.num_draft_tokens
    last = k
    while last and not float(uniforms[last]) < _kept(draft, laws, log_pi, last):
        last -= 1
    nodes, drawn = tuple(range(1, last + 1)), int(verification.drawn[last])
    judged = [(p, law.q, math.exp(pi)) for (p, _), law, pi in zip(laws, draft.laws, log_pi[:-1], strict=True)]
    alphas = tuple(float(np.minimum(p, q).sum()) for p, q, _ in judged[: last + 1])
    chances = tuple(_chance(p, q, pi) for p, q, pi in judged[: last + 1])
    if last == k:
        return Acceptance(nodes, drawn, True, alphas, chances)
    rest, tail = _residual(draft, laws, log_pi, last)
    if not (rest.any() or tail):  # p = q, and only rounding can have refused what follows: the draw is from p
        rest, tail = laws[last]
    token = recovered(draft.laws[last], rest, tail, drawn, float(uniforms[0]))
    return Acceptance(nodes, token, False, alphas, chances)


def _kept(draft: Draft, laws: list[tuple[Floats, float]], log_pi: list[float], position: int) -> float:
    """h: with what chance the first `position` tokens are kept once more was refused, or nothing follows."""
    if position == draft.tree.num_draft_tokens:
        return math.exp(log_pi[position])
    rest, tail = _residual(draft, laws, log_pi, position)
    return kept_chance(log_pi[position], float(rest.sum()) + tail)


def block_weights(draft: Draft, laws: list[tuple[Floats, float]]) -> list[float]:
    """log pi_0..pi_k: pi_0 = 1, pi_i = min(1, pi_(i-1) p_i(x_i) / q_i(x_i)); in logs, because a long chain of unlikely
    tokens would leave float64. laws: `normalised`, one per position of the chain `draft`."""
    log_pi = [0.0]
    for position, ((p, _), law) in enumerate(zip(laws, draft.laws, strict=True), start=1):
        (found,) = np.nonzero(law.ids == draft.tree.token(position))
        log_pi.append(child_weight(log_pi[-1], float(p[found[0]]), float(law.q[found[0]])))
    return log_pi


def child_weight(log_a: float, p: float, q: float) -> float:
    """log min(1, a p / q) of a drafted token: p and q its probabilities, a the weight of the node that it follows."""
    assert q > 0, "a child that its law cannot draw: check_draft was left out"
    if p == 0:
        return -math.inf
    return min(0.0, log_a + math.log(p) - math.log(q))


def kept_chance(log_a: float, mass: float) -> float:
    """Z / (Z + 1 - a): with what chance a prefix of weight a is kept once all that followed it was refused; mass Z:
    what the refusals left."""
    if log_a == 0.0:
        return 1.0
    return mass / (mass - math.expm1(log_a))


def _residual(
    draft: Draft, laws: list[tuple[Floats, float]], log_pi: list[float], position: int
) -> tuple[Floats, float]:
    """(pi p - q)+ behind `position` tokens: on the support, and the mass outside."""
    (p, tail), pi = laws[position], math.exp(log_pi[position])
    return np.maximum(pi * p - draft.laws[position].q, 0.0), pi * tail


def _chance(p: Floats, q: Floats, pi: float) -> float:
    """That a block kept to here is kept one token further: sum of min(pi p, q) over pi. At least alpha."""
    if pi == 0.0:  # underflow
        return float(p[q > 0].sum())
    return min(1.0, float(np.minimum(pi * p, q).sum()) / pi)
