"""The Medusa drafter, against its heads as they are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draft_service.drafters import DraftJob, medusa
from draft_service.drafters.medusa import MedusaDrafter
from draft_service.drafters.static_tree import TreeShape, best_tree
from specdec.core.draft import DraftKind
from specdec.core.errors import ConfigError, InvalidArgument
from specdec.core.features import NO_FEATURES, FeatureRows
from specdec.core.laws import check_draft
from specdec.core.randomness import target_key, target_noise
from specdec.core.sampling import SamplingParams
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.loading import LoadedModel
from tests.draft_service.conftest import VOCAB, Clock
from tests.draft_service.jobs import GREEDY, draft_all, draft_one, random_ids, tokens
from tests.draft_service.tiny_heads import ACCURACIES, Features, SlowHead, config, feature_job, write_head
from tests.reference import reference_law

NewDrafter = Callable[..., MedusaDrafter]
FOLDERS: dict[str, dict[str, Any]] = {
    "measured": {"accuracies": ACCURACIES},
    "unmeasured": {},
    "cut head": {"accuracies": ACCURACIES, "head_ids": "first:20"},
    "more layers": {"accuracies": ACCURACIES, "feature_layers": [0, 2]},
}
PARAMS = {
    "greedy": GREEDY,
    "hot": SamplingParams(temperature=1.5),
    "penalties": SamplingParams(repetition_penalty=3.0, presence_penalty=1.5, frequency_penalty=1.0),
    "bias": SamplingParams(logit_bias=((3, 4.0), (30, 5.0), (5, -100.0)), min_tokens=9, end_ids=(9, 31)),
}


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, loaded: LoadedModel) -> dict[str, Path]:
    return {
        name: write_head(tmp_path_factory.mktemp("medusa"), "medusa", model_folder, loaded, **settings)
        for name, settings in FOLDERS.items()
    }


@pytest.fixture
def new_medusa(heads: dict[str, Path], model_folder: Path, metrics: ReplicaMetrics) -> NewDrafter:
    def make(name: str = "measured", **fields: Any) -> MedusaDrafter:
        folder = str(heads[name])
        return medusa.build(config(f"medusa:{folder}", model_folder, **fields), metrics, folder)

    return make


@pytest.fixture
def features(loaded: LoadedModel) -> Features:
    return Features(loaded, [2])


def slow_tree(slow: SlowHead, job: DraftJob, shape: TreeShape, columns: int, first: int = 0) -> list[tuple[int, int]]:
    """(token, parent) of each node: rank r at depth d is head d's candidate number r, of its law behind the path to the
    parent; above temperature 0 in the order in which the target's noise would draw."""
    nodes: list[tuple[int, int]] = []
    place: dict[int, int] = {0: 0}
    paths: dict[int, list[int]] = {0: []}
    for at, (parent, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True), 1):
        if parent not in place or (paths[parent] and paths[parent][-1] in job.params.end_ids):
            continue
        path, context = paths[parent], [*job.context.tolist(), *paths[parent]]
        logits = slow.medusa(job, first + len(path))
        logits[columns:] = -np.inf
        law = reference_law(
            logits, context, job.turn_start, replace(job.params, temperature=job.params.temperature or 1.0)
        )
        late = -law
        if not job.params.greedy:
            noise = target_noise(target_key(job.seed, len(context)), np.arange(VOCAB, dtype=np.uint32))
            late = np.divide(noise, law, out=np.full(VOCAB, np.inf), where=law > 0)
        token = int(np.argsort(late, kind="stable")[rank])
        if law[token] > 0:
            nodes.append((token, place[parent]))
            place[at], paths[at] = len(nodes), [*path, token]
    return nodes


def as_nodes(draft: Any) -> list[tuple[int, int]]:
    return list(zip(tokens(draft), draft.tree.parents.tolist(), strict=True))


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("name", ["measured", "cut head", "more layers"])
@pytest.mark.parametrize("n", [1, 14])
def test_the_tree_is_the_heads_likeliest(
    new_medusa: NewDrafter, loaded: LoadedModel, name: str, params: SamplingParams, n: int
) -> None:
    drafter = new_medusa(name)
    slow = SlowHead(drafter._heads.parts.folder.path, Path(drafter._heads.parts.path))
    features, shape = Features(loaded, slow.layers), best_tree(ACCURACIES, n)
    for seed in range(3):
        job = feature_job(
            features, random_ids(seed, 20), n, params, turn_start=12, seed=seed, kind=DraftKind.SAMPLED, support=8
        )
        draft = draft_one(drafter, job)
        assert as_nodes(draft) == slow_tree(slow, job, shape, 20 if name == "cut head" else VOCAB)
        assert draft.kind is DraftKind.CHOSEN and draft.drafter == "medusa"
        assert draft.coupled is not params.greedy and 0 < draft.score < 4
        check_draft(draft, VOCAB)


def test_where_features_lag_later_heads_take_over(new_medusa: NewDrafter, features: Features) -> None:
    drafter = new_medusa()
    slow = SlowHead(drafter._heads.parts.folder.path, Path(drafter._heads.parts.path))
    for lag in (1, 3):
        job = feature_job(features, random_ids(1, 20), 6, lag=lag)
        shape = best_tree(ACCURACIES[lag:], 6)
        assert as_nodes(draft_one(drafter, job)) == slow_tree(slow, job, shape, VOCAB, lag)
    assert tokens(draft_one(drafter, feature_job(features, random_ids(1, 20), 6, lag=4))) == []


def test_without_features_there_is_no_draft(new_medusa: NewDrafter, features: Features) -> None:
    job = feature_job(features, random_ids(1, 9), 3)
    job.session.features = NO_FEATURES
    assert tokens(draft_one(new_medusa(), job)) == []


def test_without_measured_accuracies_there_is_a_tree_all_the_same(new_medusa: NewDrafter, features: Features) -> None:
    tree = draft_one(new_medusa("unmeasured"), feature_job(features, random_ids(1, 9), 12)).tree
    assert tree.num_draft_tokens == 12 and tree.depths.max() > 1 and len(tree.children[0]) > 1


def test_drafts_do_not_depend_on_the_batch(new_medusa: NewDrafter, features: Features) -> None:
    drafter = new_medusa()

    def jobs() -> list[DraftJob]:
        both = (GREEDY, SamplingParams())
        return [feature_job(features, random_ids(i, 4 + 9 * i), 1 + 2 * i, both[i % 2], lag=i % 2) for i in range(6)]

    for together, alone in zip(draft_all(drafter, jobs()), jobs(), strict=True):
        assert as_nodes(together) == as_nodes(draft_one(drafter, alone))


def test_nothing_follows_an_id_that_ends_the_turn(new_medusa: NewDrafter, features: Features) -> None:
    drafter, context = new_medusa(), random_ids(7, 16)
    end = draft_one(drafter, feature_job(features, context, 9)).tree.token(1)
    cut = draft_one(drafter, feature_job(features, context, 9, replace(GREEDY, end_ids=(end,)))).tree
    assert cut.token(1) == end and not cut.children[1]


def test_what_is_wrong_with_one_job_is_its_error_alone(new_medusa: NewDrafter, features: Features) -> None:
    drafter = new_medusa()
    wild = replace(SamplingParams(), logit_bias=((VOCAB, 1.0),))
    nothing = replace(SamplingParams(), logit_bias=tuple((v, -np.inf) for v in range(VOCAB)))
    well, biased, impossible, misshaped = (
        feature_job(features, random_ids(1, 12), 3, params) for params in (GREEDY, wild, nothing, GREEDY)
    )
    misshaped.session.features = FeatureRows(0, 11, bytes(11 * 8))
    draft, refused, empty, torn = draft_all(drafter, [well, biased, impossible, misshaped])
    assert len(tokens(draft)) == 3
    assert refused.field == "logit_bias_ids" and empty.reason == "EMPTY_LAW"
    assert isinstance(torn, InvalidArgument) and torn.field == "features"


def test_a_job_without_time_gets_no_draft(new_medusa: NewDrafter, features: Features) -> None:
    drafter, clock = new_medusa(), Clock()
    drafter._clock = clock
    late = feature_job(features, random_ids(1, 12), 3, deadline=clock.now - 1.0)
    assert [
        len(tokens(draft)) for draft in draft_all(drafter, [late, feature_job(features, random_ids(1, 12), 3)])
    ] == [0, 3]


def test_a_folder_of_another_kind_or_without_the_last_layer_is_refused(
    metrics: ReplicaMetrics, model_folder: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    eagle = write_head(tmp_path / "eagle", "eagle", model_folder, loaded)
    early = write_head(tmp_path / "early", "medusa", model_folder, loaded, feature_layers=[1])
    for folder, problem in ((eagle, "kind eagle"), (early, "lack the last layer")):
        with pytest.raises(ConfigError, match=problem):
            medusa.build(config(f"medusa:{folder}", model_folder), metrics, str(folder))


def test_it_says_what_it_needs_and_for_whom(new_medusa: NewDrafter, loaded: LoadedModel) -> None:
    model = new_medusa().model
    assert model.tree and model.feature_layers == (2,) and model.feature_size == loaded.hidden_size
    assert model.target_base_fingerprint == loaded.base_fingerprint and model.fingerprint
