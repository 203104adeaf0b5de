"""EAGLE-2's trees, against section 8 of the algorithms done plainly: every expansion, every node, one rerank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draft_service.drafters import DraftJob, eagle2
from draft_service.drafters.eagle2 import EXPANSIONS, WIDTH, DynamicGrowth
from draft_service.drafters.eagle_drafter import EagleDrafter
from draft_service.drafters.forward_cost import ForwardCost
from draft_service.session import DraftSession
from specdec.core.draft import DraftKind
from specdec.core.laws import check_draft
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.loading import LoadedModel
from specdec.lm.question import Answer
from tests.draft_service.conftest import VOCAB, Clock
from tests.draft_service.jobs import GREEDY, draft_all, draft_one, ids, random_ids
from tests.draft_service.tiny_heads import Features, SlowHead, config, feature_job, ticking, write_head
from tests.reference import reference_law

NewDrafter = Callable[..., EagleDrafter]
PARAMS = {
    "greedy": GREEDY,
    "hot": SamplingParams(temperature=1.5),
    "cold": SamplingParams(temperature=0.3),
    "penalties": SamplingParams(temperature=0.0, repetition_penalty=2.0, frequency_penalty=1.0),
    "few": SamplingParams(top_k=3),
    "ends": SamplingParams(temperature=0.8, end_ids=(4, 7, 8, 18, 28)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, loaded: LoadedModel) -> Path:
    return write_head(tmp_path_factory.mktemp("eagle2"), "eagle", model_folder, loaded)


@pytest.fixture
def new_eagle2(folder: Path, model_folder: Path, metrics: ReplicaMetrics) -> NewDrafter:
    return lambda **fields: eagle2.build(config(f"eagle2:{folder}", model_folder, **fields), metrics, str(folder))


@pytest.fixture
def features(loaded: LoadedModel) -> Features:
    return Features(loaded, [2])


@pytest.fixture
def slow(folder: Path, model_folder: Path) -> SlowHead:
    return SlowHead(folder, model_folder)


Node = tuple[int, int, float]  # token, parent (index of a node, -1 the root), score


def slow_tree(law_after: Callable[[list[int]], Any], n: int, end_ids: tuple[int, ...]) -> list[Node]:
    """The nodes kept, in the order of recording. law_after: path -> float64[V]."""
    nodes: list[Node] = []

    def path(node: int) -> list[int]:
        return [] if node < 0 else [*path(nodes[node][1]), nodes[node][0]]

    frontier = [-1]
    for _ in range(1 + EXPANSIONS):
        new = []
        for node in frontier:
            law = law_after(path(node))
            for token in sorted(range(len(law)), key=lambda v: (-law[v], v))[:WIDTH]:
                if law[token] > 0:
                    nodes.append((token, node, (nodes[node][2] if node >= 0 else 0.0) + math.log(law[token])))
                    new.append(len(nodes) - 1)
        best = sorted(new, key=lambda node: -nodes[node][2])[:WIDTH]
        frontier = [node for node in best if nodes[node][0] not in end_ids]
    kept = sorted(sorted(range(len(nodes)), key=lambda node: -nodes[node][2])[:n])
    return [(nodes[at][0], kept.index(nodes[at][1]) if nodes[at][1] >= 0 else -1, nodes[at][2]) for at in kept]


def as_nodes(tree: DraftTree) -> list[tuple[int, int]]:
    return [(int(token), int(parent) - 1) for token, parent in zip(tree.token_ids, tree.parents, strict=True)]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("n", [1, 12, 59])
def test_the_tree_is_that_of_section_8(
    new_eagle2: NewDrafter, features: Features, slow: SlowHead, params: SamplingParams, n: int
) -> None:
    """Every parent is kept: `slow_tree` would not find it else."""
    job = feature_job(features, random_ids(n, 20), n, params, turn_start=12, kind=DraftKind.SAMPLED, support=8)
    context = job.context.tolist()
    law = params if not params.greedy else replace(params, temperature=1.0)
    laws: dict[tuple[int, ...], Any] = {}

    def law_after(path: list[int]) -> Any:
        if tuple(path) not in laws:
            laws[tuple(path)] = reference_law(slow.eagle(job, path), [*context, *path], 12, law)
        return laws[tuple(path)]

    draft = draft_one(new_eagle2(), job)
    expected = slow_tree(law_after, n, params.end_ids)
    assert as_nodes(draft.tree) == [node[:2] for node in expected]
    assert draft.score == pytest.approx(sum(math.exp(score) for _, _, score in expected), rel=1e-3)
    assert draft.kind is DraftKind.CHOSEN and draft.drafter == "eagle2" and not draft.coupled
    check_draft(draft, VOCAB)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("certain", [False, True])
def test_what_is_not_expanded_would_not_have_been_kept(seed: int, certain: bool) -> None:
    """Laws with ties and, if certain, with tokens of probability 1, where only a stable order keeps every parent."""

    def law_after(path: list[int]) -> Any:
        rng = np.random.default_rng([seed, *path])
        law = rng.integers(0, 3, VOCAB).astype(float) ** rng.integers(1, 6)
        law[rng.integers(VOCAB)] += 1e9 if certain and rng.random() < 0.7 else 1.0
        if certain and rng.random() < 0.5:
            law[law < 1e9 - 1] *= law.max() < 1e9
        return law / law.sum()

    for n in (3, 20, 59):
        growth = DynamicGrowth(DraftJob(DraftSession(), ids([1, 2]), n, GREEDY), None, n)
        asked = 0
        while growth.outcome is None:
            every = np.arange(VOCAB, dtype=np.uint32)
            laws = tuple((every, law_after(growth._path(node).tolist())) for node in growth.frontier)
            asked += len(laws)
            growth.extend(Answer(every[:0], np.zeros(0), (), np.zeros(0), laws))
        expected = slow_tree(law_after, n, ())
        assert as_nodes(growth.outcome.tree) == [node[:2] for node in expected]  # type: ignore[union-attr]
        assert asked <= 1 + growth.max_rows


def test_negative_control_a_rerank_that_is_not_stable_loses_parents() -> None:
    """Of tokens of probability 1 all scores are 0, and any order of them is by falling score."""
    every, certain = np.arange(VOCAB, dtype=np.uint32), np.eye(VOCAB)[7]
    growth = DynamicGrowth(DraftJob(DraftSession(), ids([1, 2]), 59, GREEDY), None, 59)
    while growth.outcome is None:
        growth.extend(Answer(every[:0], np.zeros(0), (), np.zeros(0), ((every, certain),) * len(growth.frontier)))
    newest_first = np.arange(len(growth.tokens), 0, -1)
    unstable = newest_first[np.argsort(-np.array(growth._scores)[newest_first], kind="stable")][:4]
    assert not {growth.parents[node - 1] for node in unstable} <= {0, *unstable.tolist()}


def test_trees_do_not_depend_on_the_batch(new_eagle2: NewDrafter, features: Features) -> None:
    def jobs() -> list[DraftJob]:
        both = (GREEDY, SamplingParams())
        return [feature_job(features, random_ids(i, 4 + 9 * i), 8 * (i + 1), both[i % 2], lag=i % 2) for i in range(6)]

    drafter = new_eagle2(token_budget=16)
    for together, alone in zip(draft_all(drafter, jobs()), jobs(), strict=True):
        assert as_nodes(together.tree) == as_nodes(draft_one(drafter, alone).tree)


def test_a_job_without_time_gets_the_best_of_what_was_recorded(
    new_eagle2: NewDrafter, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwards take a second each."""
    drafter, clock = new_eagle2(), Clock()
    drafter._clock, drafter._cost = clock, ForwardCost()
    monkeypatch.setattr(drafter._head.runner, "compute", ticking(clock, drafter._head.runner.compute))
    whole = draft_one(drafter, feature_job(features, random_ids(1, 12), 40)).tree
    cut = draft_one(drafter, feature_job(features, random_ids(1, 12), 40, deadline=clock.now + 1.5)).tree
    assert cut.num_draft_tokens == WIDTH and set(cut.parents.tolist()) == {0} and whole.depths.max() > 1
