"""The EAGLE drafter. The oracles: the head as it is trained, over whole sequences, and a drafter that has seen nothing
before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draft_service.drafters import DraftJob, eagle
from draft_service.drafters.eagle_drafter import MAX_TRUNK, EagleDrafter
from draft_service.drafters.forward_cost import ForwardCost
from draft_service.session import DraftSession
from specdec.core.draft import Draft, DraftKind
from specdec.core.errors import ConfigError, DraftFault, InvalidArgument
from specdec.core.features import NO_FEATURES, FeatureRows
from specdec.core.laws import check_draft, check_draws
from specdec.core.sampling import SamplingParams
from specdec.edge.telemetry import ReplicaMetrics
from specdec.lm.loading import LoadedModel, load_model, read_config, read_weights
from specdec.lm.torch_kv import TorchKV
from tests.draft_service.conftest import MAX_CONTEXT, VOCAB, Clock
from tests.draft_service.jobs import GREEDY, draft_all, draft_one, ids, random_ids, tokens
from tests.draft_service.tiny_heads import (
    ACCURACIES,
    Features,
    SlowHead,
    config,
    feature_job,
    make_oracle,
    ticking,
    write_head,
)
from tests.reference import reference_law, reference_tokens, reference_y
from tests.tiny_models import make_tiny_model

NewDrafter = Callable[..., EagleDrafter]
PARAMS = {
    "greedy": GREEDY,
    "plain": SamplingParams(),
    "top_p": SamplingParams(temperature=1.5, top_p=0.8),
    "penalties": SamplingParams(repetition_penalty=3.0, presence_penalty=1.5, frequency_penalty=1.0),
    "greedy penalties": SamplingParams(temperature=0.0, repetition_penalty=2.0, frequency_penalty=1.0),
    "bias": SamplingParams(logit_bias=((3, 4.0), (30, 5.0), (5, -100.0)), min_tokens=9, end_ids=(9, 31)),
}
many_params = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
FOLDERS: dict[str, dict[str, Any]] = {
    "last": {},
    "three layers": {"feature_layers": [0, 1, 2]},
    "cut head": {"head_ids": "first:20"},
    "tree": {"tree": True, "accuracies": ACCURACIES},
}


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, loaded: LoadedModel) -> dict[str, Path]:
    return {
        name: write_head(tmp_path_factory.mktemp("eagle"), "eagle", model_folder, loaded, **settings)
        for name, settings in FOLDERS.items()
    }


@pytest.fixture
def new_eagle(heads: dict[str, Path], model_folder: Path, metrics: ReplicaMetrics) -> NewDrafter:
    def make(name: str = "last", **fields: Any) -> EagleDrafter:
        folder = str(heads[name])
        return eagle.build(config(f"eagle:{folder}", model_folder, **fields), metrics, folder)

    return make


@pytest.fixture
def features(loaded: LoadedModel) -> Features:
    return Features(loaded, [2])


@pytest.fixture
def slow(heads: dict[str, Path], model_folder: Path) -> SlowHead:
    return SlowHead(heads["last"], model_folder)


def slow_chain(slow: SlowHead, job: DraftJob, columns: int = VOCAB) -> list[int]:
    """What the head would say next, or draw with the target's noise, one token after another."""
    drafted: list[int] = []
    while len(drafted) < job.num_draft_tokens and not (drafted and drafted[-1] in job.params.end_ids):
        context = [*job.context.tolist(), *drafted]
        logits = slow.eagle(job, drafted)
        logits[columns:] = -np.inf
        law = reference_law(logits, context, job.turn_start, job.params)
        drafted.append(reference_y(law, job.seed, len(context)))
    return drafted


@many_params
@pytest.mark.parametrize("name", ["last", "three layers", "cut head"])
def test_a_chosen_chain_is_the_slow_heads(
    new_eagle: NewDrafter, loaded: LoadedModel, name: str, params: SamplingParams
) -> None:
    """Greedy, and above temperature 0 coupled with the target's noise; features from a window on, or from the start."""
    drafter = new_eagle(name)
    slow = SlowHead(drafter._head.parts.folder.path, Path(drafter._head.parts.path))
    features = Features(loaded, slow.layers)
    for seed, start in ((0, 0), (1, 7)):
        job = feature_job(features, random_ids(seed, 20), 5, params, start=start, seed=seed, turn_start=12)
        draft = draft_one(drafter, job)
        assert tokens(draft) == slow_chain(slow, job, 20 if name == "cut head" else VOCAB)
        assert draft.kind is DraftKind.CHOSEN and draft.drafter == "eagle"
        assert draft.coupled is not params.greedy and 0 < draft.score < 5


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9)])
def test_a_head_that_is_the_target_is_always_right(
    metrics: ReplicaMetrics, tmp_path: Path, params: SamplingParams
) -> None:
    target, folder = make_oracle(tmp_path / "target", tmp_path / "head", VOCAB)
    loaded = load_model(str(target), dtype="float32", device="cpu")
    drafter = eagle.build(config(f"eagle:{folder}", target), metrics, str(folder))
    model: Any = read_weights(str(target), read_config(str(target), None), "float32", "cpu")

    def logits_of(context: list[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([context])).logits[0, -1].numpy()

    for seed, lag in ((0, 0), (1, 3)):
        job = feature_job(Features(loaded, [1]), random_ids(seed, 20), 8, params, seed=seed, turn_start=20, lag=lag)
        expected = reference_tokens(logits_of, job.context.tolist(), params, seed, 8)
        assert tokens(draft_one(drafter, job)) == expected


def test_missing_features_are_estimated(new_eagle: NewDrafter, features: Features, slow: SlowHead) -> None:
    drafter = new_eagle()
    for lag in range(1, MAX_TRUNK + 1):
        job = feature_job(features, random_ids(lag, 24), 3, lag=lag)
        assert tokens(draft_one(drafter, job)) == slow_chain(slow, job)
    far = feature_job(features, random_ids(1, 24), 3, lag=MAX_TRUNK + 1)
    assert tokens(draft_one(drafter, far)) == []


def test_without_features_there_is_no_draft(new_eagle: NewDrafter, features: Features) -> None:
    """The first cycle of a session, and a context of one token."""
    drafter = new_eagle()
    job = feature_job(features, random_ids(1, 9), 3)
    job.session.features = NO_FEATURES
    assert tokens(draft_one(drafter, job)) == []
    session = DraftSession()
    session.context = ids([3])
    assert tokens(draft_one(drafter, DraftJob(session, ids([3]), 3, GREEDY))) == []


@pytest.mark.parametrize("name", ["last", "tree"])
@pytest.mark.parametrize("kind", [DraftKind.CHOSEN, DraftKind.SAMPLED])
def test_no_history_of_acceptance_shows_in_a_draft(
    new_eagle: NewDrafter, features: Features, name: str, kind: DraftKind
) -> None:
    """After drafts that came true, in part or not at all, after a context taken back, and with features that lag."""
    rng = np.random.default_rng(5)
    drafter, session, context = new_eagle(name), DraftSession(), random_ids(3, 40)
    fields: dict[str, Any] = {"kind": kind, "support": 8, "seed": 11}
    for turn in range(24):
        params = GREEDY if turn % 2 else SamplingParams()
        start, lag = int(rng.integers(0, 8)), int(rng.integers(0, 3))
        job = feature_job(features, context, 5, params, session, start=start, lag=lag, **fields)
        whole = draft_one(drafter, job)
        fresh = replace(job, session=DraftSession())
        # What is held of an older window stays, so a fresh drafter is given the window that the old one began with.
        fresh.session.features = features.of(context, drafter._sequences._held[session].start).before(
            len(context) - 1 - lag
        )
        assert_same(whole, draft_one(drafter, fresh))
        drafter.close(fresh.session)
        accepted = tokens(whole)[: int(rng.integers(0, 4))] if whole.tree.is_chain else []
        taken = int(rng.integers(0, 12)) if turn % 5 == 4 else 0
        context = [*context[: len(context) - taken], *accepted, int(rng.integers(0, VOCAB))]


def test_sessions_with_the_same_tokens_share_no_rows(new_eagle: NewDrafter, features: Features) -> None:
    """Behind other tokens, the same tokens have other features: full blocks must not be found by tokens alone."""
    drafter, window = new_eagle(), random_ids(1, 80)
    jobs = [feature_job(features, [*random_ids(i, 30), *window], 6, start=30) for i in range(2, 6)]
    together = [draft_one(drafter, job) for job in jobs]
    again = [draft_one(drafter, replace(job)) for job in jobs]
    for job, first, second in zip(jobs, together, again, strict=True):
        alone = draft_one(new_eagle(), replace(job))
        assert_same(first, alone)
        assert_same(second, alone)


def assert_same(draft: Draft, other: Draft) -> None:
    assert tokens(draft) == tokens(other)
    assert (draft.tree.parents == other.tree.parents).all() and draft.kind is other.kind
    assert draft.score == pytest.approx(other.score, rel=1e-4)
    for law, its in zip(draft.laws, other.laws, strict=True):
        np.testing.assert_allclose(law.q, its.q, atol=1e-3)


@pytest.mark.scenario("B09")
@many_params
@pytest.mark.parametrize("name", ["last", "tree"])
def test_sampled_drafts_pass_the_redraw_and_report_the_law_of_their_logits(
    new_eagle: NewDrafter, features: Features, slow: SlowHead, name: str, params: SamplingParams
) -> None:
    """Chains, and trees without replacement; the laws are the target's of the same logits, cut to the support."""
    drafter, context = new_eagle(name), random_ids(4, 16)
    for seed in range(6):
        job = feature_job(features, context, 7, params, kind=DraftKind.SAMPLED, support=6, seed=seed, turn_start=12)
        draft = draft_one(drafter, job)
        check_draft(draft, VOCAB)
        if params.greedy:
            assert draft.kind is DraftKind.CHOSEN
            continue
        check_draws(draft, seed, len(context))
        assert draft.kind is (DraftKind.SAMPLED if draft.tree.is_chain else DraftKind.SAMPLED_WITHOUT_REPLACEMENT)
        assert draft.score == 0 and not draft.coupled
        for node, law in zip(draft.tree.inner_nodes, draft.laws, strict=True):
            path = draft.tree.path(node)
            expected = reference_law(slow.eagle(job, path), [*context, *path], 12, params)
            kept = sorted(range(VOCAB), key=lambda v: (-expected[v], v))[:6]
            cut = np.array([expected[v] if v in kept else 0.0 for v in range(VOCAB)])
            reported = np.zeros(VOCAB)
            reported[law.ids] = law.q
            np.testing.assert_allclose(reported, cut / cut.sum(), atol=2e-3)


@pytest.mark.scenario("B09")
def test_negative_control_a_draw_with_another_seeds_numbers_fails_the_redraw(
    new_eagle: NewDrafter, features: Features
) -> None:
    job = feature_job(features, random_ids(4, 16), 7, SamplingParams(), kind=DraftKind.SAMPLED, support=6, seed=1)
    with pytest.raises(DraftFault):
        check_draws(draft_one(new_eagle("tree"), job), 2, 16)


def test_a_chosen_tree_has_the_likeliest_children_and_its_shape(
    new_eagle: NewDrafter, features: Features, slow: SlowHead
) -> None:
    job = feature_job(features, random_ids(6, 16), 9)
    tree = draft_one(new_eagle("tree"), job).tree
    assert tree.num_draft_tokens == 9 and not tree.is_chain
    for node in tree.inner_nodes:
        logits = slow.eagle(job, tree.path(node))
        best = sorted(range(VOCAB), key=lambda v: -logits[v])
        assert [tree.token(child) for child in tree.children[node]] == best[: len(tree.children[node])]


def test_drafts_do_not_depend_on_the_batch(new_eagle: NewDrafter, features: Features) -> None:
    """Contexts of many lengths, k of many sizes, sampled and chosen, all in one batch and one after another."""

    def jobs() -> list[DraftJob]:
        kinds = [DraftKind.CHOSEN, DraftKind.SAMPLED]
        return [
            feature_job(features, random_ids(i, 4 + 9 * i), 1 + i, [GREEDY, SamplingParams()][i % 2], lag=i % 3,
                        kind=kinds[i // 2 % 2], support=8, seed=i)
            for i in range(8)
        ]  # fmt: skip

    for budget in (256, 8):
        drafter = new_eagle("tree", token_budget=budget)
        for together, alone in zip(draft_all(drafter, jobs()), jobs(), strict=True):
            assert_same(together, draft_one(drafter, alone))


def test_a_draft_ends_after_an_id_that_ends_the_turn(new_eagle: NewDrafter, features: Features) -> None:
    drafter, context = new_eagle("tree"), random_ids(7, 16)
    whole = draft_one(drafter, feature_job(features, context, 9)).tree
    end = whole.token(1)
    cut = draft_one(drafter, feature_job(features, context, 9, replace(GREEDY, end_ids=(end,)))).tree
    assert cut.token(1) == end and not cut.children[1] and cut.num_draft_tokens < 9


def test_what_is_wrong_with_one_job_is_its_error_alone(new_eagle: NewDrafter, features: Features) -> None:
    drafter = new_eagle()
    wild = replace(SamplingParams(), logit_bias=((VOCAB, 1.0),))
    nothing = replace(SamplingParams(), logit_bias=tuple((v, -np.inf) for v in range(VOCAB)))
    well, biased, impossible, misshaped = (
        feature_job(features, random_ids(1, 12), 3, params) for params in (GREEDY, wild, nothing, GREEDY)
    )
    misshaped.session.features = FeatureRows(0, 11, bytes(11 * 8))
    draft, refused, empty, torn = draft_all(drafter, [well, biased, impossible, misshaped])
    assert tokens(draft) == tokens(draft_one(drafter, feature_job(features, random_ids(1, 12), 3)))
    assert refused.field == "logit_bias_ids" and empty.reason == "EMPTY_LAW"
    assert isinstance(torn, InvalidArgument) and torn.field == "features"


def test_poisoned_rows_are_one_jobs_error_and_are_computed_afresh(new_eagle: NewDrafter, features: Features) -> None:
    drafter, contexts = new_eagle(network="stock"), [random_ids(1, 40), random_ids(2, 40)]
    jobs = [feature_job(features, context, 3) for context in contexts]
    healthy = [tokens(draft_one(drafter, job)) for job in jobs]
    storage = drafter._head.runner._storage
    assert isinstance(storage, TorchKV)
    storage.data[:, :, :, drafter._sequences._held[jobs[0].session].rows.rows(0, 38)] = float("nan")
    refused, draft = draft_all(drafter, [replace(job) for job in jobs])
    assert refused.reason == "NAN_LOGITS" and tokens(draft) == healthy[1]
    assert tokens(draft_one(drafter, replace(jobs[0]))) == healthy[0]


@pytest.mark.scenario("B90")
def test_memory_is_bounded_and_closing_gives_it_back(new_eagle: NewDrafter, features: Features) -> None:
    """Sessions that were not drafted for lately lose their rows and are none the worse."""
    drafter = new_eagle(kv_tokens=128)
    jobs = [feature_job(features, random_ids(i, 40), 4) for i in range(8)]
    first = [tokens(draft_one(drafter, job)) for job in jobs]
    assert drafter.kv_free < drafter.kv_total
    assert [tokens(draft_one(drafter, replace(job))) for job in jobs] == first
    assert len(drafter._sequences._held) < len(jobs)
    huge = feature_job(features, random_ids(9, 150), 4)
    assert tokens(draft_one(drafter, huge)) == [], "what never fits is not drafted for"
    for job in jobs:
        drafter.close(job.session)
        drafter.close(job.session)
    assert drafter.kv_free == drafter.kv_total and not drafter._sequences._held


def test_the_context_window_cuts_the_draft(new_eagle: NewDrafter, features: Features) -> None:
    drafter = new_eagle()
    context = random_ids(1, MAX_CONTEXT - 2)
    assert len(tokens(draft_one(drafter, feature_job(features, context, 5)))) == 2
    assert tokens(draft_one(drafter, feature_job(features, [*context, 1, 2], 5))) == []


def test_a_job_without_time_gets_the_tree_that_there_is(
    new_eagle: NewDrafter, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwards take a second each."""
    drafter, clock = new_eagle(), Clock()
    drafter._clock, drafter._cost = clock, ForwardCost()
    monkeypatch.setattr(drafter._head.runner, "compute", ticking(clock, drafter._head.runner.compute))
    at_leisure = tokens(draft_one(drafter, feature_job(features, random_ids(1, 12), 6)))
    for seconds, forwards in ((-1.0, 0), (2.5, 2), (4.5, 4)):
        hurried = feature_job(features, random_ids(1, 12), 6, deadline=clock.now + seconds)
        assert tokens(draft_one(drafter, hurried)) == at_leisure[:forwards]


def test_it_says_what_it_needs_and_for_whom(new_eagle: NewDrafter, loaded: LoadedModel) -> None:
    model = new_eagle("three layers").model
    assert (model.feature_layers, model.feature_size) == ((0, 1, 2), loaded.hidden_size)
    assert model.target_base_fingerprint == loaded.base_fingerprint and not model.tree
    assert (model.vocab_size, model.tokenizer_hash) == (VOCAB, loaded.tokenizer_hash)
    assert model.fingerprint and new_eagle("tree").model.tree


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("network", ["native", "lean", "stock"])
def test_it_is_served_by_every_network_and_dtype(
    new_eagle: NewDrafter, features: Features, dtype: str, network: str
) -> None:
    """Rounded, the head still mostly says the same."""
    exact, rounded = new_eagle(), new_eagle(dtype=dtype, network=network)
    same = sum(
        tokens(draft_one(exact, feature_job(features, random_ids(i, 20), 1)))
        == tokens(draft_one(rounded, feature_job(features, random_ids(i, 20), 1)))
        for i in range(12)
    )
    assert same >= 8


def test_a_folder_for_another_target_is_refused(
    heads: dict[str, Path], metrics: ReplicaMetrics, tmp_path: Path
) -> None:
    folder = str(heads["last"])
    for vocab, hidden in ((VOCAB, 64), (48, 32)):
        other = make_tiny_model(tmp_path / "other", vocab_size=vocab, hidden=hidden)
        with pytest.raises(ConfigError, match="was made for a target"):
            eagle.build(config(f"eagle:{folder}", other), metrics, folder)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_its_layer_is_of_the_targets_family(metrics: ReplicaMetrics, tmp_path: Path, family: str) -> None:
    target = make_tiny_model(tmp_path / "target", family, vocab_size=VOCAB, hidden=32, max_context=MAX_CONTEXT)
    loaded = load_model(str(target), dtype="float32", device="cpu")
    folder = write_head(tmp_path / "head", "eagle", target, loaded)
    drafter = eagle.build(config(f"eagle:{folder}", target), metrics, str(folder))
    job = feature_job(Features(loaded, [2]), random_ids(1, 20), 4)
    assert tokens(draft_one(drafter, job)) == slow_chain(SlowHead(folder, target), job)
