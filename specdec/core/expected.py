"""How much of a recorded chain a rule accepts in expectation, without the noise of acceptance itself: what two rules
are compared by on the same chains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specdec.core.acceptance import Floats, normalised, require_laws
from specdec.core.block import block_weights
from specdec.core.draft import Draft
from specdec.core.verification import Verification


@dataclass(frozen=True, slots=True)
class Survival:
    """Per position, the chance that the chain is accepted up to there and with it: float64[k] under the token rule and
    under block verification."""

    token: Floats
    block: Floats

    @property
    def accepted(self) -> tuple[float, float]:
        """Expected accepted tokens: (token rule, block verification)."""
        return float(self.token.sum()), float(self.block.sum())


def chain_survival(draft: Draft, verification: Verification) -> Survival:
    """Of a sampled chain and the target's answer to it. Each position's chance is given the tokens before it and over
    its own draw: the token rule's is alpha_i times the product of min(1, p / q) before, block's is the sum over x of
    min(pi_(i-1) p_i(x), q_i(x)) (algorithms.md, sections 1 and 4). The means over many recorded chains are those of
    counted acceptance, and block's is at least the token rule's on every chain."""
    require_laws(draft, verification)
    assert draft.tree.is_chain, "survival is that of a chain"
    laws = [normalised(target) for target in verification.laws]
    reached, weights = 1.0, block_weights(draft, laws)
    token, block = np.zeros(len(laws)), np.zeros(len(laws))
    for i, ((p, _), law) in enumerate(zip(laws, draft.laws, strict=True)):
        token[i] = reached * float(np.minimum(p, law.q).sum())
        block[i] = float(np.minimum(math.exp(weights[i]) * p, law.q).sum())
        (found,) = np.nonzero(law.ids == draft.tree.token(i + 1))
        reached *= min(1.0, float(p[found[0]] / law.q[found[0]]))
    return Survival(token, block)
