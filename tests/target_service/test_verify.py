from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from specdec.core.acceptance import check_verification
from specdec.core.draft import Draft
from specdec.core.errors import SpecdecError
from specdec.core.laws import draw
from specdec.core.randomness import Purpose, uniforms
from specdec.core.sampling import SamplingParams
from specdec.core.tree import EMPTY_TREE, DraftTree
from specdec.core.verification import NO_OUTSIDE, Verification, VerifyForm
from specdec.edge.messages import OpenSession, VerifyRequest
from specdec.lm.law import BadLogits, EmptyLaw, top_p_kept
from target_service.verify import VerifyItem, verify_all
from tests import slow_laws
from tests.law_ways import WAYS, serve_by
from tests.reference import reference_law, reference_y

V, PADDED = 30, 32
CONTEXT = np.array([3, 1, 4, 1, 5], dtype=np.uint32)
TREE = DraftTree(np.array([7, 8, 9, 7], dtype=np.uint32), np.array([0, 0, 1, 3], dtype=np.int64))
INNER = (0, 1, 3)
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.6, top_k=8, top_p=0.9, frequency_penalty=0.4, min_tokens=3, end_ids=(2, 9)),
    SamplingParams(temperature=0),
]


@pytest.fixture
def logits() -> np.ndarray:
    out = (np.random.default_rng(0).normal(size=(TREE.num_nodes, PADDED)) * 2).astype(np.float32)
    out[:, V:] = 50.0  # padding that must never win
    return out


def laws(logits: np.ndarray, params: SamplingParams) -> list[np.ndarray]:
    return [reference_law(logits[n, :V], CONTEXT.tolist() + TREE.path(n), 3, params) for n in range(TREE.num_nodes)]


def verified(logits: np.ndarray, params: SamplingParams, request: VerifyRequest, seed: int = 9) -> Verification:
    opening = OpenSession("s", params, seed, 3)
    [out] = verify_all([VerifyItem(torch.from_numpy(logits), CONTEXT, opening, request)], V)
    assert isinstance(out, Verification)
    return out


@pytest.mark.parametrize("params", PARAMS)
def test_form_y_draws_each_nodes_token_by_its_position(logits: np.ndarray, params: SamplingParams) -> None:
    request = VerifyRequest(0, 0, CONTEXT, TREE, want_child_p=True)
    out = verified(logits, params, request)
    expected = laws(logits, params)
    depths = TREE.depths.tolist()
    assert out.drawn.tolist() == [reference_y(p, 9, 5 + d) for p, d in zip(expected, depths, strict=True)]
    assert out.child_p is not None
    children = [expected[n][t] for n, t in zip(TREE.parents, TREE.token_ids, strict=True)]
    np.testing.assert_allclose(out.child_p, children, rtol=1e-6)
    assert out.laws == ()
    assert out.logprobs is None


@pytest.mark.parametrize("params", PARAMS)
def test_form_pq_sends_p_tail_and_an_outside_sample_of_each_node(logits: np.ndarray, params: SamplingParams) -> None:
    supports = tuple(np.array(s, dtype=np.uint32) for s in ([7, 8, 31, 0], [9, 1], list(range(V))))
    request = VerifyRequest(0, 0, CONTEXT, TREE, VerifyForm.PQ, supports)
    out = verified(logits, params, request)
    us = uniforms(9, len(CONTEXT), Purpose.OUTSIDE, TREE.num_nodes)
    by_node = dict(zip(INNER, zip(supports, out.laws, strict=True), strict=True))
    for node, law in enumerate(laws(logits, params)):
        outside = law.copy()
        if node in by_node:
            ids, sent = by_node[node]
            outside[[i for i in ids if i < V]] = 0.0
            assert sent.ids.tolist() == ids.tolist()
            np.testing.assert_allclose(sent.p, [law[i] if i < V else 0.0 for i in ids], rtol=1e-6)
            assert sent.tail == pytest.approx(outside.sum(), rel=1e-6)
        z = draw(outside, float(us[node])) if outside.any() else NO_OUTSIDE
        assert out.drawn[node] == z


@pytest.mark.parametrize("params", PARAMS)
def test_form_typical_sends_y_the_childrens_p_and_every_nodes_entropy(
    logits: np.ndarray, params: SamplingParams
) -> None:
    """Of the laws after all transforms; y and p are those of form Y, bit for bit."""
    plain = verified(logits, params, VerifyRequest(0, 0, CONTEXT, TREE, want_child_p=True))
    out = verified(logits, params, VerifyRequest(0, 0, CONTEXT, TREE, VerifyForm.TYPICAL))
    assert out.child_p is not None and out.entropies is not None and plain.child_p is not None
    assert out.drawn.tobytes() == plain.drawn.tobytes()
    np.testing.assert_allclose(out.child_p, plain.child_p, rtol=1e-6)
    expected = [-sum(x * np.log(x) for x in law if x > 0) for law in laws(logits, params)]
    np.testing.assert_allclose(out.entropies, expected, rtol=1e-5, atol=1e-7)
    assert plain.entropies is None and out.entropies.dtype == np.float32
    check_verification(Draft(TREE), out, VerifyForm.TYPICAL, V)


@pytest.mark.parametrize("form", [VerifyForm.Y, VerifyForm.PQ, VerifyForm.TYPICAL])
@pytest.mark.parametrize("top", [0, 3])
def test_raw_logprobs_come_with_everything_that_may_be_emitted(logits: np.ndarray, form: VerifyForm, top: int) -> None:
    supports = tuple(np.array(s, dtype=np.uint32) for s in ([7, 8], [9], [7])) if form is VerifyForm.PQ else ()
    request = VerifyRequest(0, 0, CONTEXT, TREE, form, supports)
    out = verified(logits, SamplingParams(temperature=0.5, logprobs=top), request)
    real = logits[:, :V].astype(np.float64)
    table = real - np.log(np.exp(real).sum(axis=1, keepdims=True))
    assert out.logprobs is not None
    np.testing.assert_allclose(out.logprobs.drawn, table[np.arange(5), out.drawn], atol=1e-5)
    assert out.logprobs.top_ids.shape == (5, top)
    for node, ids, values in zip(INNER, supports, out.logprobs.support, strict=False):
        np.testing.assert_allclose(values, table[node, ids], atol=1e-5)
    assert len(out.logprobs.support) == len(supports)


def test_plain_decoding_in_form_pq_has_no_law_and_a_draw_of_the_whole() -> None:
    logits = np.zeros((1, V), dtype=np.float32)
    request = VerifyRequest(0, 0, CONTEXT, DraftTree.chain([]), VerifyForm.PQ)
    out = verified(logits, SamplingParams(logprobs=1), request)
    [u] = uniforms(9, len(CONTEXT), Purpose.OUTSIDE, 1)
    assert out.drawn.tolist() == [int(u * V)]
    assert out.logprobs is not None
    assert (out.laws, out.logprobs.support) == ((), ())


@pytest.mark.parametrize("params", PARAMS)
def test_verify_is_pure(logits: np.ndarray, params: SamplingParams) -> None:
    """The same question has the same answer, bit for bit, and another seed another draw."""
    request = VerifyRequest(0, 0, CONTEXT, TREE, want_child_p=True)
    first, second = (verified(logits, params, request) for _ in range(2))
    assert first.drawn.tobytes() == second.drawn.tobytes()
    assert first.child_p is not None and second.child_p is not None
    assert first.child_p.tobytes() == second.child_p.tobytes()
    others = {verified(logits, params, request, seed).drawn.tobytes() for seed in range(20)}
    assert (len(others) > 1) == (not params.greedy)


def any_item(generator: np.random.Generator, vocab_size: int) -> VerifyItem:
    """A request of any kind; logits of few values, so that ties are the rule, or flat, usual or peaked."""

    def one_of(*values: Any) -> Any:
        return values[generator.integers(len(values))]

    nodes = int(generator.integers(1, 7))
    parents = np.array([generator.integers(0, i + 1) for i in range(nodes - 1)], dtype=np.int64)
    tree = DraftTree(generator.integers(0, vocab_size, nodes - 1).astype(np.uint32), parents)
    scale = one_of(0.05, 1.0, 4.0, None)
    values = generator.normal(size=(nodes, vocab_size + 3)) * (scale or 0.0)
    if scale is None:
        values = generator.choice([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0], size=values.shape)
    context = generator.integers(0, vocab_size, generator.integers(1, 30)).astype(np.uint32)
    params = SamplingParams(
        temperature=one_of(0.0, 0.01, 0.7, 1.0, 3.0),
        top_k=one_of(0, 0, 1, 2, 5, 50, vocab_size // 2),
        top_p=one_of(1.0, 1.0, 1e-8, 0.1, 0.5, 0.8, 0.95, 0.999),
        min_p=one_of(0.0, 0.0, 0.05, 0.3, 1.0),
        repetition_penalty=one_of(1.0, 1.0, 0.8, 1.3),
        presence_penalty=one_of(0.0, -0.5, 0.7),
        frequency_penalty=one_of(0.0, -0.3, 0.7),
        logit_bias=one_of((), ((3, -100.0), (4, 2.5), (4, 0.5)), ((0, -np.inf),)),
        min_tokens=one_of(0, 1, 3, 5),
        end_ids=one_of((), (2,), (2, 7), (1, 500_000)),
        logprobs=one_of(None, None, 0, 3),
    )
    form = one_of(VerifyForm.Y, VerifyForm.PQ)
    supports: tuple[np.ndarray, ...] = ()
    if form is VerifyForm.PQ:
        sizes = [min(vocab_size, int(generator.integers(1, 33))) for _ in tree.inner_nodes]
        supports = tuple(generator.choice(vocab_size + 5, n, replace=False).astype(np.uint32) for n in sizes)
    request = VerifyRequest(0, 0, context, tree, VerifyForm(form), supports, want_child_p=form is VerifyForm.Y)
    opening = OpenSession("s", params, int(generator.integers(1 << 62)), int(generator.integers(len(context) + 1)))
    return VerifyItem(torch.from_numpy(values.astype(np.float32)), context, opening, request)


def slowly(item: VerifyItem, vocab_size: int) -> Verification | SpecdecError:
    try:
        return slow_laws.verify(item.logits, item.context, item.opening, item.request, vocab_size)
    except (EmptyLaw, BadLogits) as error:
        return error


def assert_same(ours: Verification | SpecdecError, expected: Verification | SpecdecError) -> None:
    """Draws, supports and errors the same; probabilities to the last bit but one of float32."""
    assert type(ours) is type(expected)
    if not isinstance(ours, Verification) or not isinstance(expected, Verification):
        return
    assert ours.drawn.tolist() == expected.drawn.tolist()
    pairs = [(a.p, b.p) for a, b in zip(ours.laws, expected.laws, strict=True)]
    pairs += [(np.array([a.tail]), np.array([b.tail])) for a, b in zip(ours.laws, expected.laws, strict=True)]
    assert (ours.child_p is None) == (expected.child_p is None)
    if ours.child_p is not None and expected.child_p is not None:
        pairs.append((ours.child_p, expected.child_p))
    for p, q in pairs:
        assert ((p > 0) == (q > 0)).all()
        np.testing.assert_allclose(p, q, rtol=2e-7)
    assert (ours.logprobs is None) == (expected.logprobs is None)
    if ours.logprobs is not None and expected.logprobs is not None:
        assert ours.logprobs.top_ids.tolist() == expected.logprobs.top_ids.tolist()
        np.testing.assert_array_equal(ours.logprobs.drawn, expected.logprobs.drawn)
        for a, b in zip(ours.logprobs.support, expected.logprobs.support, strict=True):
            np.testing.assert_array_equal(a, b)


def batches(seeds: range) -> list[tuple[list[VerifyItem], int]]:
    out = []
    for seed in seeds:
        generator = np.random.default_rng(seed)
        vocab_size = int(generator.choice([9, 40, 300, 2500]))
        out.append(([any_item(generator, vocab_size) for _ in range(6)], vocab_size))
    return out


@pytest.mark.parametrize("way", WAYS)
def test_a_mixed_batch_equals_the_slow_verifier_one_by_one(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_by(way, monkeypatch)
    for items, vocab_size in batches(range(25)):
        for ours, item in zip(verify_all(items, vocab_size), items, strict=True):
            assert_same(ours, slowly(item, vocab_size))


@pytest.mark.parametrize("way", WAYS)
def test_negative_control_a_nucleus_of_one_token_more_is_seen(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_more(p: torch.Tensor, top_p: float) -> torch.Tensor:
        kept = top_p_kept(p, top_p).roll(1, -1)
        kept[:, 0] = True
        return kept

    serve_by(way, monkeypatch)
    monkeypatch.setattr("tests.slow_laws.top_p_kept", one_more)
    with pytest.raises(AssertionError):
        for items, vocab_size in batches(range(10)):
            for ours, item in zip(verify_all(items, vocab_size), items, strict=True):
                assert_same(ours, slowly(item, vocab_size))


@pytest.mark.parametrize("way", WAYS)
def test_one_sessions_trouble_is_its_own(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_by(way, monkeypatch)
    good = torch.from_numpy(np.random.default_rng(0).normal(size=(1, V)).astype(np.float32))
    banned = SamplingParams(logit_bias=tuple((v, -np.inf) for v in range(V)))
    opening = OpenSession("s", SamplingParams(), 9, 3)
    request = VerifyRequest(0, 0, CONTEXT, EMPTY_TREE)
    items = [
        VerifyItem(good, CONTEXT, opening, request),
        VerifyItem(torch.full((1, V), np.nan), CONTEXT, opening, request),
        VerifyItem(good, CONTEXT, OpenSession("s", banned, 9, 3), request),
        VerifyItem(good, CONTEXT, opening, request),
    ]
    first, nan, empty, last = verify_all(items, V)
    assert isinstance(nan, BadLogits)
    assert isinstance(empty, EmptyLaw)
    for out in (first, last):
        assert_same(out, slowly(items[0], V))


def test_no_items_no_results() -> None:
    assert verify_all([], V) == []
