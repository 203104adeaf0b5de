from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.core.laws import draw
from specdec.core.randomness import coupled_choice, target_key
from specdec.core.sampling import SamplingParams
from specdec.lm.answers import answer_all, native_laws
from specdec.lm.histories import Histories
from specdec.lm.question import Answer, Question
from tests.law_ways import WAYS, AnswerOne, serve_by
from tests.slow_laws import target_laws

V = 3001  # no multiple of any vector width
EVERY = np.arange(V, dtype=np.uint32)
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=1e-5),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(top_p=0.999, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.1),
    SamplingParams(temperature=1.7, top_k=50),
    SamplingParams(top_k=2000, top_p=0.9, min_p=0.01),
    SamplingParams(min_p=0.2, min_tokens=9, end_ids=(1, 5)),
]
HISTORIES = Histories(np.array([4, 8, 15, 16, 23, 4], dtype=np.uint32), 2, ((), (5,), (5, 5), (5, 9), (23,)))


def many_logits(seed: int) -> torch.Tensor:
    """Nodes of very flat, usual and peaked laws, one of few values, one of a coarse type, whose ties are many."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(5, V)) * np.array([0.02, 1.0, 6.0, 0.0, 1.5])[:, None]
    rows[3] = generator.choice([0.0, 1.0, 2.5], V)
    logits = torch.from_numpy(rows.astype(np.float32))
    logits[4] = logits[4].bfloat16().float()
    return logits


@pytest.mark.parametrize("params", PARAMS)
def test_every_probability_and_support_is_the_slow_laws(answer: AnswerOne, params: SamplingParams) -> None:
    question = Question(many_logits(1), HISTORIES, params, keys=[0] * 5, looks=[EVERY] * 5)
    laws = target_laws(question.logits, HISTORIES, params, V)
    for node, p in enumerate(answer(question, V).looked):
        ids, expected = laws.row(node)
        law = np.zeros(V)
        law[ids] = expected
        assert ((p > 0) == (law > 0)).all()
        np.testing.assert_allclose(p, law, rtol=1e-12)


@pytest.mark.parametrize("params", PARAMS)
def test_entropies_are_the_slow_laws_and_do_not_depend_on_company(answer: AnswerOne, params: SamplingParams) -> None:
    question = Question(many_logits(1), HISTORIES, params, keys=[0] * 5, entropy=True)
    laws = target_laws(question.logits, HISTORIES, params, V)
    got = answer(question, V).entropies
    assert got is not None
    expected = [-sum(x * np.log(x) for x in laws.row(node)[1].tolist() if x > 0) for node in range(5)]
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    alone = Histories(HISTORIES.context, HISTORIES.turn_start, HISTORIES.paths[2:3])
    [one] = answer_all([Question(question.logits[2:3], alone, params, keys=[0], entropy=True)], V)
    [two, _] = answer_all([question, Question(many_logits(5), HISTORIES, params, keys=[0] * 5)], V)
    assert isinstance(one, Answer) and isinstance(two, Answer)
    assert one.entropies is not None and two.entropies is not None
    assert one.entropies[0] == two.entropies[2] == got[2]


@pytest.mark.parametrize("params", PARAMS)
def test_draws_are_those_of_the_slow_laws_for_many_keys(answer: AnswerOne, params: SamplingParams) -> None:
    logits = many_logits(2)
    laws = target_laws(logits, HISTORIES, params, V)
    us = np.random.default_rng(0).random(60).tolist()
    for node in range(5):
        ids, p = laws.row(node)
        many = Histories(HISTORIES.context, HISTORIES.turn_start, (HISTORIES.paths[node],) * len(us))
        rows = logits[node : node + 1].expand(len(us), -1)
        keys = [target_key(3, position) for position in range(len(us))]
        drawn = answer(Question(rows, many, params, keys=keys), V).drawn
        assert drawn.tolist() == [ids[coupled_choice(ids, p, key)] for key in keys]
        sampled = answer(Question(rows, many, params, us=us, looks=[EVERY[:0]] * len(us)), V).drawn
        assert sampled.tolist() == [ids[draw(p, u)] for u in us]


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_is_the_same_bits_in_any_company(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_by(way, monkeypatch)
    questions = [
        Question(many_logits(seed), HISTORIES, params, keys=[7] * 5, looks=[EVERY] * 5, likeliest=20)
        for seed in range(2)
        for params in PARAMS
    ]
    together = answer_all(questions[::-1], V)[::-1]
    for question, company in zip(questions, together, strict=True):
        [alone] = answer_all([question], V)
        assert isinstance(alone, Answer)
        assert isinstance(company, Answer)
        assert alone.drawn.tobytes() == company.drawn.tobytes()
        for name in ("looked", "likeliest"):
            mine, other = (getattr(result, name) for result in (alone, company))
            assert [np.asarray(x).tobytes() for x in mine] == [np.asarray(x).tobytes() for x in other]


def test_the_native_way_decides_itself_but_where_rounding_could() -> None:
    """Else the speed would be torch's, unseen."""
    native = native_laws()
    if native is None:
        pytest.skip("no C compiler")
    generator = np.random.default_rng(5)
    logits = torch.from_numpy((generator.normal(size=(1, V)) * 2).astype(np.float32))
    history = Histories(HISTORIES.context, 2, ((),))
    for params in PARAMS:
        assert native([Question(logits, history, params, keys=[9])], V) != [None], params
        assert native([Question(logits, history, params, us=[0.3], looks=[EVERY[:9]])], V) != [None], params
    # A mass of exactly top_p: the running sum of the definition has to say.
    halves = Question(torch.zeros(1, 4), history, SamplingParams(top_p=0.5), keys=[9])
    assert native([halves], 4) == [None]


def test_logits_in_any_layout_are_read_right(answer: AnswerOne) -> None:
    logits = many_logits(4)
    padded = torch.full((5, V + 7), 90.0)
    padded[:, :V] = logits
    history, keys = HISTORIES, list(range(5))
    expected = answer(Question(logits, history, PARAMS[2], keys=keys), V)
    for layout in (padded, logits.T.contiguous().T):
        assert answer(Question(layout, history, PARAMS[2], keys=keys), V).drawn.tolist() == expected.drawn.tolist()
