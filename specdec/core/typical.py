"""Typical acceptance (Medusa, Cai et al. 2024; algorithms.md, section 7). Lossy: it keeps draft tokens that the target
finds plausible, so what it emits does not have the target's law. Only for those who ask for it by name."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specdec.core.acceptance import Acceptance, Floats
from specdec.core.draft import Draft
from specdec.core.verification import Verification, VerifyForm

EPSILON, DELTA = 0.09, 0.3


def typical_rule(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """The longest path of typical tokens, of equally long ones the likeliest, then the target's own draw behind it. At
    temperature 0, where laws are point masses, it is the greedy walk. `uniforms` is not read; acceptance says nothing
    of how well p and q agree, so there are no alphas."""
    assert verification.form is VerifyForm.TYPICAL, "typical acceptance needs p and entropy of every node"
    assert verification.child_p is not None and verification.entropies is not None, "check_verification was left out"
    tree = draft.tree
    thresholds = threshold(verification.entropies)
    standing = {0: (0, 0.0)}  # node: (depth, log p of the path); only nodes whose path is typical throughout
    for node in range(1, tree.num_nodes):
        parent, p = int(tree.parents[node - 1]), float(verification.child_p[node - 1])
        if parent in standing and p > thresholds[parent]:
            depth, log_p = standing[parent]
            standing[node] = depth + 1, log_p + math.log(p)
    best = max(standing, key=lambda node: standing[node])
    return Acceptance(tree.nodes_to(best), int(verification.drawn[best]), not tree.children[best])


def threshold(entropies: NDArray[np.floating]) -> Floats:
    """min(epsilon, delta exp(-H)) of each node: what a token's probability must exceed. entropies: float[n], nats."""
    return np.minimum(EPSILON, DELTA * np.exp(-entropies.astype(np.float64)))
