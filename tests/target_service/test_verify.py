from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.core.laws import draw
from specdec.core.randomness import Purpose, uniforms
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, Verification, VerifyForm
from specdec.edge.messages import OpenSession, VerifyRequest
from target_service.verify import verify
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
    return verify(torch.from_numpy(logits), CONTEXT, opening, request, V)


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


@pytest.mark.parametrize("form", [VerifyForm.Y, VerifyForm.PQ])
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
