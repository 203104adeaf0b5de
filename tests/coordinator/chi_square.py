"""Whether sampled tokens follow an exactly known law: Pearson's test of the transitions from each last token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

SUSPICIOUS = 1e-4  # seeds are fixed: a lawful run that passes once passes always

Rows = Sequence[Sequence[float]]


def transition_counts(outputs: Iterable[Sequence[int]], prompts: Iterable[int], size: int) -> NDArray[np.int64]:
    """int64[size, size]: how often token j came after token i. prompts: the token before each output."""
    counts = np.zeros((size, size), dtype=np.int64)
    for ids, prompt in zip(outputs, prompts, strict=True):
        chain = np.array([prompt, *ids])
        np.add.at(counts, (chain[:-1], chain[1:]), 1)
    return counts


def p_value(counts: NDArray[np.int64], rows: Rows) -> float:
    """Of the counts under the law rows[i] after token i; 0 where an impossible token came."""
    law = np.array(rows, dtype=np.float64)
    assert counts.shape == law.shape, "one row of counts per row of the law"
    if counts[law == 0].any():
        return 0.0
    expected = law * counts.sum(axis=1, keepdims=True)
    used = expected > 0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    freedom = used.sum() - used.any(axis=1).sum()
    return float(stats.chi2.sf(statistic, freedom))


def token_p_value(ids: Sequence[int], law: Sequence[float]) -> float:
    """Of independent tokens."""
    return p_value(np.bincount(ids, minlength=len(law))[None, :], [law])
