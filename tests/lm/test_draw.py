from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.core.randomness import target_key
from specdec.core.sampling import SamplingParams
from specdec.core.verification import NO_OUTSIDE
from specdec.lm.draw import raw_logprobs
from specdec.lm.histories import Histories
from specdec.lm.question import Answer, Question
from tests.law_ways import AnswerOne
from tests.reference import reference_law, reference_y

V = 40
NOTHING = np.zeros(0, dtype=np.uint32)


def random_question(params: SamplingParams, nodes: int, seed: int = 0, **asked: object) -> tuple[Question, np.ndarray]:
    logits = (np.random.default_rng(seed).normal(size=(nodes, V)) * 2).astype(np.float32)
    histories = Histories(np.array([1], dtype=np.uint32), 1, ((),) * nodes)
    return Question(torch.from_numpy(logits), histories, params, **asked), logits  # type: ignore[arg-type]


def outside_draws(answer: AnswerOne, params: SamplingParams, support: np.ndarray, us: list[float]) -> Answer:
    """Of the same law at every u."""
    question, _ = random_question(params, 1)
    many = Question(
        question.logits.expand(len(us), -1),
        Histories(np.array([1], dtype=np.uint32), 1, ((),) * len(us)),
        params,
        us=us,
        looks=[support] * len(us),
    )
    return answer(many, V)


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.6), SamplingParams(temperature=0)]
)
def test_y_is_the_draw_of_one_token_at_a_time(answer: AnswerOne, params: SamplingParams) -> None:
    question, logits = random_question(params, 50, keys=[target_key(7, position) for position in range(50)])
    out = answer(question, V)
    laws = [reference_law(row, [1], 1, params) for row in logits]
    assert out.drawn.tolist() == [reference_y(law, 7, position) for position, law in enumerate(laws)]
    assert out.drawn.dtype == np.uint32
    np.testing.assert_allclose(out.p, [law[y] for law, y in zip(laws, out.drawn, strict=True)], rtol=1e-12)


def test_a_draw_never_lands_on_a_token_of_probability_zero(answer: AnswerOne) -> None:
    params = SamplingParams(top_p=0.3)
    question, logits = random_question(params, 200, keys=[target_key(1, t) for t in range(200)])
    for row, token in zip(logits, answer(question, V).drawn.tolist(), strict=True):
        assert reference_law(row, [1], 1, params)[token] > 0


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=9, top_p=0.9)])
@pytest.mark.parametrize("support", [NOTHING, np.array([3, 1, 39, 0], dtype=np.uint32), np.array([5, 77], np.uint32)])
def test_support_tail_and_outside_draw_are_the_whole_law(
    answer: AnswerOne, params: SamplingParams, support: np.ndarray
) -> None:
    """Enumerated over a grid of u: p on the support plus tail times the law of z is the target law."""
    _, logits = random_question(params, 1)
    law = reference_law(logits[0], [1], 1, params)
    steps = 4000
    out = outside_draws(answer, params, support, [(i + 0.5) / steps for i in range(steps)])
    np.testing.assert_allclose(out.looked[0], [law[i] if i < V else 0.0 for i in support], rtol=1e-12)
    whole = out.tails[0] * np.bincount(out.drawn, minlength=V) / steps
    known = support[support < V]
    assert (whole[known] == 0).all()
    whole[known] = out.looked[0][support < V]
    np.testing.assert_allclose(whole, law, atol=2 / steps)
    assert ((whole > 0) <= (law > 0)).all()


def test_negative_control_a_sample_of_the_whole_law_is_no_outside_sample(answer: AnswerOne) -> None:
    _, logits = random_question(SamplingParams(), 1)
    support = np.array([int(logits[0].argmax())], dtype=np.uint32)
    us = [(i + 0.5) / 100 for i in range(100)]
    inside = outside_draws(answer, SamplingParams(), NOTHING, us)
    outside = outside_draws(answer, SamplingParams(), support, us)
    assert int(support[0]) in inside.drawn
    assert int(support[0]) not in outside.drawn


def test_without_a_tail_there_is_no_mass_outside(answer: AnswerOne) -> None:
    _, logits = random_question(SamplingParams(top_k=2), 1)
    both = np.argsort(-logits[0])[:2].astype(np.uint32)
    out = outside_draws(answer, SamplingParams(top_k=2), both, [0.0, 0.999])
    assert out.tails.tolist() == [0.0, 0.0]
    assert out.looked[0].sum() == pytest.approx(1.0)


def test_a_draw_that_runs_off_the_end_takes_the_last_possible_token(answer: AnswerOne) -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0, -torch.inf]])
    histories = Histories(np.array([1], dtype=np.uint32), 1, ((),))
    ask = Question(logits, histories, SamplingParams(), us=[float(np.nextafter(1.0, 0.0))], looks=[NOTHING])
    assert answer(ask, 4).drawn.tolist() == [2]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=6), SamplingParams(temperature=0)])
def test_likeliest_are_the_largest_of_the_law_with_ties_to_the_lowest_ids(
    answer: AnswerOne, params: SamplingParams
) -> None:
    question, _ = random_question(params, 5, likeliest=8)
    question.logits[0] = 0.5
    for row, (ids, p) in zip(question.logits.numpy(), answer(question, V).likeliest, strict=True):
        law = reference_law(row, [1], 1, params)
        expected = sorted(sorted(range(V), key=lambda v: (-law[v], v))[: np.count_nonzero(law[law > 0])][:8])
        assert ids[p > 0].tolist() == expected
        np.testing.assert_allclose(p[p > 0], law[expected], rtol=1e-12)


def test_confidence_is_the_raw_softmax_at_the_greedy_token(answer: AnswerOne) -> None:
    params = SamplingParams(temperature=0, logit_bias=((3, 50.0),))
    question, logits = random_question(params, 4, keys=[0] * 4, confidence=True)
    out = answer(question, V)
    assert out.drawn.tolist() == [3] * 4
    raw = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(out.p, raw[:, 3] / raw.sum(axis=1), rtol=1e-9)


@pytest.mark.scenario("B58")
def test_logprobs_are_those_of_the_raw_logits_whatever_the_law() -> None:
    """One mode on all paths: before penalties, temperature and filters; drawn tokens have theirs even when filtered."""
    _, logits = random_question(SamplingParams(), 3)
    table = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    drawn = np.array([5, NO_OUTSIDE, 39], dtype=np.uint32)
    support = np.array([2, 99, 0], dtype=np.uint32)
    logprobs = raw_logprobs(torch.from_numpy(logits), drawn, [1], [support], 4)
    np.testing.assert_allclose(logprobs.drawn, [table[0, 5], -np.inf, table[2, 39]], atol=1e-5)
    np.testing.assert_allclose(logprobs.support[0], [table[1, 2], -np.inf, table[1, 0]], atol=1e-5)
    order = np.argsort(-table, axis=1, kind="stable")[:, :4]
    assert logprobs.top_ids.tolist() == order.tolist()
    np.testing.assert_allclose(logprobs.top, np.take_along_axis(table, order, 1), atol=1e-5)


def test_no_top_logprobs_wanted_gives_none() -> None:
    _, logits = random_question(SamplingParams(), 2)
    logprobs = raw_logprobs(torch.from_numpy(logits), np.array([1, 2], dtype=np.uint32), [], [], 0)
    assert logprobs.top_ids.shape == logprobs.top.shape == (2, 0)
