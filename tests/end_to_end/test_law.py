"""The law of sampled output through three real processes, against the exact law of a tiny real Llama."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from specdec.core.sampling import SamplingParams
from specdec.edge.client import Client
from tests.end_to_end.clusters import PROMPT, VOCAB, cluster, generated, tiny_folder, transformers_logits
from tests.reference import reference_law

REQUESTS = 2250  # by each rule: with 1500 the wrong law was once told at p = 6e-4 only, where 1e-11 is usual
AT_ONCE = 32
PARAMS = SamplingParams(temperature=1.3, top_k=12, presence_penalty=0.4)


def exact_pairs(folder: Path) -> np.ndarray:
    """float64[V, V]: the joint law of the first two output tokens."""
    start = len(PROMPT)
    first = reference_law(transformers_logits(folder, [PROMPT])[0].numpy(), PROMPT, start, PARAMS)
    contexts = [[*PROMPT, v] for v in range(VOCAB)]
    logits = transformers_logits(folder, contexts).numpy()
    return np.array([first[v] * reference_law(logits[v], contexts[v], start, PARAMS) for v in range(VOCAB)])


def p_value(counts: Counter[tuple[int, int]], law: np.ndarray) -> float:
    """Chi-square over the cells that expect at least five, the others pooled; 0 for a pair that cannot occur."""
    total = sum(counts.values())
    if any(law[pair] == 0 for pair in counts):
        return 0.0
    likely = np.argwhere(law * total >= 5).tolist()
    observed = [counts[a, b] for a, b in likely]
    expected = [law[a, b] * total for a, b in likely]
    rest = total - sum(expected)
    if rest > 1e-9 * total:
        observed.append(total - sum(observed))
        expected.append(rest)
    return float(chisquare(observed, np.array(expected) * (sum(observed) / sum(expected))).pvalue)


@pytest.mark.timeout(240)
async def test_sampled_pairs_have_the_targets_law(tmp_path: Path) -> None:
    """Unseeded requests, drafts sampled by a two-layer copy and judged by each rule; a law that is a little sharper is
    told apart."""
    folder = tiny_folder(tmp_path / "model", std=0.12)
    gate = asyncio.Semaphore(AT_ONCE)
    alphas: list[float] = []

    async def one(client: Client, verification: str) -> tuple[int, int]:
        async with gate:
            ids, stats = await generated(
                client,
                token_ids=PROMPT,
                max_tokens=3,
                num_draft_tokens=2,
                drafter="lm",
                verification=verification,
                temperature=PARAMS.temperature,
                top_k=PARAMS.top_k,
                presence_penalty=PARAMS.presence_penalty,
            )
        alphas.append(stats.exact_alpha_sum / max(1, stats.exact_alpha_count))
        return ids[0], ids[1]

    async with cluster(folder, tmp_path / "logs") as running, Client(running.address) as client:
        pairs = {
            rule: Counter(await asyncio.gather(*(one(client, rule) for _ in range(REQUESTS))))
            for rule in ("rejection", "block")
        }
    law = exact_pairs(folder)
    assert 0.2 < np.mean(alphas) < 0.98, "drafts too good or too bad to test anything"
    wrong = law**1.4
    for rule, counts in pairs.items():
        assert p_value(counts, law) > 1e-4, rule
        assert p_value(counts, wrong / wrong.sum()) < 1e-4, "the test could not tell a wrong law"
