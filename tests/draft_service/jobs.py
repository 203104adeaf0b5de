"""Jobs for drafters, and drafting them to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draft_service.drafters import Drafter, DraftJob
from draft_service.session import DraftSession
from specdec.core.draft import Draft
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids

GREEDY = SamplingParams(temperature=0.0)


def ids(values: Sequence[int]) -> Ids:
    return np.array(values, dtype=np.uint32)


def random_ids(seed: int, n: int, vocab: int = 32) -> list[int]:
    return [int(v) for v in np.random.default_rng(seed).integers(0, vocab, n)]


def job(
    context: Sequence[int],
    k: int,
    params: SamplingParams = GREEDY,
    session: DraftSession | None = None,
    **fields: Any,
) -> DraftJob:
    return DraftJob(session or DraftSession(), ids(context), k, params, **fields)


def draft_all(drafter: Drafter, jobs: Sequence[DraftJob]) -> list[Any]:
    """Each job's outcome, the unfinished ones given again as the lane would."""
    outcomes: dict[int, Any] = {}
    while left := [job for job in jobs if id(job) not in outcomes]:
        for given, outcome in zip(left, drafter.propose(left), strict=True):
            if outcome is not None:
                outcomes[id(given)] = outcome
    return [outcomes[id(job)] for job in jobs]


def draft_one(drafter: Drafter, one: DraftJob) -> Draft:
    [draft] = draft_all(drafter, [one])
    assert isinstance(draft, Draft), draft
    return draft


def tokens(draft: Draft) -> list[int]:
    return [int(token) for token in draft.tree.token_ids]
