"""The slow, obvious version of everything the target promises: one node at a time, plain Python and numpy.
Written from contract.md, not from the code it judges."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specdec.core.randomness import target_key, target_noise
from specdec.core.sampling import GREEDY_BELOW, SamplingParams

Law = NDArray[np.float64]
Logits = NDArray[np.floating]


def reference_scores(
    logits: Logits, prompt_and_output: list[int], turn_start: int, params: SamplingParams
) -> list[float]:
    """Logits after bias, penalties and masks."""
    scores = [float(x) for x in logits]
    for token, bias in params.logit_bias:
        scores[token] += bias
    output = prompt_and_output[turn_start:]
    for token in set(prompt_and_output):
        r = params.repetition_penalty
        scores[token] = scores[token] / r if scores[token] > 0 else scores[token] * r
    for token in set(output):
        scores[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if len(output) < params.min_tokens:
        for token in params.end_ids:
            if token < len(scores):
                scores[token] = -math.inf
    return scores


def reference_law(logits: Logits, prompt_and_output: list[int], turn_start: int, params: SamplingParams) -> Law:
    """float64[V], summing to 1. logits: one node's, cut to the real vocabulary. prompt_and_output: every
    token before the one to be drawn, the path to the node included. Raises ValueError if no token is
    possible."""
    scores = reference_scores(logits, prompt_and_output, turn_start, params)
    ranked = sorted(range(len(scores)), key=lambda v: (-scores[v], v))
    if scores[ranked[0]] == -math.inf:
        raise ValueError("no possible token")
    law = np.zeros(len(scores))
    if params.temperature < GREEDY_BELOW:
        law[ranked[0]] = 1.0
        return law
    kept = ranked[: params.top_k] if params.top_k else ranked
    best = scores[kept[0]] / params.temperature
    weight = {v: math.exp(scores[v] / params.temperature - best) for v in kept}
    if params.top_p < 1.0:
        total, mass = math.fsum(weight.values()), 0.0
        nucleus: list[int] = []
        for v in kept:
            if nucleus and mass >= params.top_p:
                break
            nucleus.append(v)
            mass += weight[v] / total
        kept = nucleus
    kept = [v for v in kept if weight[v] >= params.min_p * weight[kept[0]]]
    total = math.fsum(weight[v] for v in kept)
    for v in kept:
        law[v] = weight[v] / total
    return law


def reference_y(law: Law, seed: int, position: int) -> int:
    """The y-form's draw of the token at `position`: argmin of e / p over possible tokens, ties to the lowest
    id."""
    noise = target_noise(target_key(seed, position), np.arange(len(law), dtype=np.uint32))
    best, choice = math.inf, -1
    for v in range(len(law)):
        if law[v] > 0 and noise[v] / law[v] < best:
            best, choice = noise[v] / law[v], v
    return choice


def reference_tokens(
    logits_of: Callable[[list[int]], Logits], prompt: list[int], params: SamplingParams, seed: int, n: int
) -> list[int]:
    """REF: n tokens, one at a time. logits_of(context) gives the next token's logits, cut to the real
    vocabulary."""
    context = list(prompt)
    for _ in range(n):
        law = reference_law(logits_of(context), context, len(prompt), params)
        context.append(reference_y(law, seed, len(context)))
    return context[len(prompt) :]
