"""The judgement of outputs without a seed, on laws without a model."""

from __future__ import annotations

import numpy as np
from scipy.stats import kstest

from tests.chaos.__main__ import ENOUGH, SHARPER
from tests.chaos.disturbed import TOKENS, VOCAB
from tests.chaos.law import SUSPICIOUS, places


def test_a_token_has_its_place_within_its_own_share_of_the_law() -> None:
    """By enumeration: the shares of .5, .3 and .2 lie one behind the other, and each is filled evenly."""
    ids = np.arange(3).repeat(2000)
    logits = np.log(np.tile([0.2, 0.5, 0.3], (len(ids), 1)))
    found = places(logits, ids.tolist(), np.random.default_rng(1)).reshape(3, 2000)
    for mine, low, high in zip(found, (0.8, 0.0, 0.5), (1.0, 0.5, 0.8), strict=True):
        assert low <= mine.min() and mine.max() <= high
        assert kstest((mine - low) / (high - low), "uniform").pvalue > 1e-3


def test_lawful_outputs_are_told_from_sharper_ones() -> None:
    """As many tokens as chaos judges at least. The second is the control: this law must be refused."""
    rng = np.random.default_rng(2)
    logits = rng.normal(0.0, 1.0, (ENOUGH * TOKENS, VOCAB))
    ids = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1).tolist()
    assert kstest(places(logits, ids, rng), "uniform").pvalue > SUSPICIOUS
    assert kstest(places(logits * SHARPER, ids, rng), "uniform").pvalue < SUSPICIOUS
