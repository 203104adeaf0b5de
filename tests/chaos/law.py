"""Whether outputs without a seed have the model's law, tested on every token that came: each one's place in the
distribution function of its law (Rosenblatt 1952), a uniform number where the output is lawful."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kstest

from tests.end_to_end.clusters import transformers_logits

SUSPICIOUS = 1e-4
Output = tuple[Sequence[int], Sequence[int]]  # prompt, output


def places(logits: NDArray[np.float64], ids: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
    """float64[n]: of ids[i] under the law of logits[i], anywhere within its own probability. Likely ids stand first: in
    any other order a law that is too sharp, or too flat, would hardly show."""
    law = np.exp(logits - logits.max(axis=1, keepdims=True))
    law /= law.sum(axis=1, keepdims=True)
    rows, order = np.arange(len(ids)), np.argsort(-law, axis=1, kind="stable")
    rank = np.argsort(order, axis=1)[rows, ids]
    reached = np.take_along_axis(law, order, axis=1).cumsum(axis=1)[rows, rank]
    found: NDArray[np.float64] = reached - rng.random(len(ids)) * law[rows, ids]
    return found


def p_value(folder: Path, outputs: Sequence[Output], temperature: float = 1.0, seed: int = 0) -> float:
    """That the outputs have the law of the model at that temperature."""
    rng, found = np.random.default_rng(seed), []
    for prompt, ids in outputs:
        logits = transformers_logits(folder, [[*prompt, *ids]], every=True)[0, len(prompt) - 1 : -1]
        found.append(places(logits.numpy().astype(np.float64) / temperature, ids, rng))
    return float(kstest(np.concatenate(found), "uniform").pvalue)
