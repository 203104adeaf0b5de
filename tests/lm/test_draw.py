from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.core.randomness import target_key
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE
from specdec.lm.draw import child_probabilities, draw_y, outside_draw, raw_logprobs
from specdec.lm.law import Histories, Laws, target_laws
from tests.reference import reference_law, reference_y

V = 40
NOTHING = np.zeros(0, dtype=np.uint32)


def random_laws(params: SamplingParams, nodes: int, seed: int = 0) -> tuple[Laws, np.ndarray]:
    logits = (np.random.default_rng(seed).normal(size=(nodes, V)) * 2).astype(np.float32)
    histories = Histories(np.array([1], dtype=np.uint32), 1, ((),) * nodes)
    return target_laws(torch.from_numpy(logits), histories, params, V), logits


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.6), SamplingParams(temperature=0)]
)
def test_y_is_the_draw_of_one_token_at_a_time(params: SamplingParams) -> None:
    laws, logits = random_laws(params, 50)
    y = draw_y(laws, [target_key(7, position) for position in range(50)])
    expected = [reference_y(reference_law(row, [1], 1, params), 7, position) for position, row in enumerate(logits)]
    assert y.tolist() == expected
    assert y.dtype == np.uint32


def test_a_draw_never_lands_on_a_token_of_probability_zero() -> None:
    laws, _ = random_laws(SamplingParams(top_p=0.3), 200)
    y = draw_y(laws, [target_key(1, t) for t in range(200)])
    for node, token in enumerate(y.tolist()):
        ids, p = laws.row(node)
        assert p[ids == token] > 0


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=9, top_p=0.9)])
@pytest.mark.parametrize("support", [NOTHING, np.array([3, 1, 39, 0], dtype=np.uint32), np.array([5, 77], np.uint32)])
def test_support_tail_and_outside_draw_are_the_whole_law(params: SamplingParams, support: np.ndarray) -> None:
    """Enumerated over a grid of u: p on the support plus tail times the law of z is the target law."""
    laws, logits = random_laws(params, 1)
    law = reference_law(logits[0], [1], 1, params)
    steps = 4000
    drawn = [outside_draw(*laws.row(0), support, (i + 0.5) / steps) for i in range(steps)]
    target = drawn[0][0]
    rebuilt = np.bincount([z for _, z in drawn], minlength=V) / steps * target.tail
    for token, p in zip(target.ids.tolist(), target.p.tolist(), strict=True):
        assert p == pytest.approx(law[token] if token < V else 0.0, rel=1e-6)
        if token < V:
            assert rebuilt[token] == 0.0
            rebuilt[token] = p
    # Cutting [0, 1) into steps misses each token's share by one step at most.
    assert abs(rebuilt - law).max() < 1.01 / steps


def test_negative_control_a_sample_of_the_whole_law_is_no_outside_sample() -> None:
    laws, logits = random_laws(SamplingParams(), 1)
    support = np.array([int(logits[0].argmax())], dtype=np.uint32)
    inside = {outside_draw(*laws.row(0), NOTHING, (i + 0.5) / 100)[1] for i in range(100)}
    outside = {outside_draw(*laws.row(0), support, (i + 0.5) / 100)[1] for i in range(100)}
    assert int(support[0]) in inside
    assert int(support[0]) not in outside


def test_without_a_tail_there_is_no_outside_sample() -> None:
    laws, logits = random_laws(SamplingParams(top_k=2), 1)
    both = np.argsort(-logits[0])[:2].astype(np.uint32)
    target, z = outside_draw(*laws.row(0), both, 0.999)
    assert (target.tail, z) == (0.0, NO_OUTSIDE)
    assert target.p.sum() == pytest.approx(1.0)


def test_a_draw_that_runs_off_the_end_takes_the_last_possible_token() -> None:
    ids, p = np.arange(4, dtype=np.uint32), np.array([0.1, 0.2, 0.7, 0.0])
    assert outside_draw(ids, p, NOTHING, np.nextafter(1.0, 0.0))[1] == 2


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=6), SamplingParams(temperature=0)])
def test_child_probabilities_are_the_parents_law_at_the_childs_token(params: SamplingParams) -> None:
    tree = DraftTree(np.array([4, 9, 9, 30], dtype=np.uint32), np.array([0, 0, 1, 3], dtype=np.int64))
    laws, logits = random_laws(params, 5)
    p = child_probabilities(laws, tree.parents, tree.token_ids)
    expected = [reference_law(logits[n], [1], 1, params)[t] for n, t in zip(tree.parents, tree.token_ids, strict=True)]
    np.testing.assert_allclose(p, expected, rtol=1e-6)


@pytest.mark.scenario("B58")
def test_logprobs_are_those_of_the_raw_logits_whatever_the_law() -> None:
    """One mode on all paths: before penalties, temperature and filters; drawn tokens have theirs even when filtered."""
    laws, logits = random_laws(SamplingParams(temperature=0.5, top_k=2, repetition_penalty=1.5), 3)
    table = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    drawn = np.array([5, NO_OUTSIDE, 39], dtype=np.uint32)
    support = np.array([2, 99, 0], dtype=np.uint32)
    logprobs = raw_logprobs(laws, drawn, [1], [support], 4)
    np.testing.assert_allclose(logprobs.drawn, [table[0, 5], -np.inf, table[2, 39]], atol=1e-5)
    np.testing.assert_allclose(logprobs.support[0], [table[1, 2], -np.inf, table[1, 0]], atol=1e-5)
    order = np.argsort(-table, axis=1, kind="stable")[:, :4]
    assert logprobs.top_ids.tolist() == order.tolist()
    np.testing.assert_allclose(logprobs.top, np.take_along_axis(table, order, 1), atol=1e-5)


def test_no_top_logprobs_wanted_gives_none() -> None:
    laws, _ = random_laws(SamplingParams(), 2)
    logprobs = raw_logprobs(laws, np.array([1, 2], dtype=np.uint32), [], [], 0)
    assert logprobs.top_ids.shape == logprobs.top.shape == (2, 0)
