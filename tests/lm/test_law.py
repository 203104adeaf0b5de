from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.sampling import GREEDY_BELOW, SamplingParams
from specdec.core.tree import EMPTY_TREE, DraftTree
from specdec.lm.histories import Histories
from specdec.lm.law import BadLogits, EmptyLaw, Laws, target_laws, top_k_ids, top_p_kept
from tests.reference import reference_law, reference_scores

V = 9


def dense(laws: Laws, vocab_size: int = V) -> np.ndarray:
    out = np.zeros((len(laws.p), vocab_size))
    for node in range(len(laws.p)):
        ids, p = laws.row(node)
        out[node, ids] = p
    return out


def one_law(logits: list[float], params: SamplingParams, context: tuple[int, ...] = (0,)) -> np.ndarray:
    history = Histories(np.array(context, dtype=np.uint32), len(context), ((),))
    law: np.ndarray = dense(target_laws(torch.tensor([logits]), history, params, len(logits)), len(logits))[0]
    return law


def laws_at(logits: np.ndarray, context: list[int], turn_start: int, tree: DraftTree, params: SamplingParams) -> Laws:
    histories = Histories.of_tree(np.array(context, dtype=np.uint32), turn_start, tree)
    return target_laws(torch.from_numpy(logits.astype(np.float32)), histories, params, V)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tokens = draw(st.lists(st.integers(0, V - 1), max_size=6))
    parents = [draw(st.integers(0, i)) for i in range(len(tokens))]
    return DraftTree(np.array(tokens, dtype=np.uint32), np.array(parents, dtype=np.int64))


def any_of(*values: object) -> st.SearchStrategy:
    return st.sampled_from(values)


every_params = st.builds(
    SamplingParams,
    temperature=any_of(0.0, 1e-6, GREEDY_BELOW, 0.01, 0.7, 1.0, 3.0),
    top_k=any_of(0, 1, 2, 5, V, 50),
    top_p=any_of(1e-8, 0.1, 0.5, 0.8, 0.95, 1.0),
    min_p=any_of(0.0, 0.05, 0.3, 1.0),
    repetition_penalty=any_of(0.8, 1.0, 1.3),
    presence_penalty=any_of(-0.5, 0.0, 0.7),
    frequency_penalty=any_of(-0.3, 0.0, 0.7),
    logit_bias=any_of((), ((3, -100.0), (4, 2.5), (4, 0.5)), ((0, -math.inf),)),
    min_tokens=any_of(0, 1, 3, 5),
    end_ids=any_of((), (2,), (2, 7), (1, 500)),
)


@settings(max_examples=400, deadline=None)
@given(
    params=every_params,
    tree=trees(),
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=4),
    output=st.lists(st.integers(0, V - 1), max_size=4),
    # Few distinct values: ties are the rule.
    values=st.lists(any_of(-2.0, -1.0, 0.0, 0.5, 1.0, 3.0), min_size=7 * V, max_size=7 * V),
)
def test_law_at_every_node_equals_the_oracle(
    params: SamplingParams, tree: DraftTree, prompt: list[int], output: list[int], values: list[float]
) -> None:
    logits = np.array(values).reshape(7, V)[: tree.num_nodes]
    laws = dense(laws_at(logits, prompt + output, len(prompt), tree, params))
    for node in range(tree.num_nodes):
        expected = reference_law(logits[node], prompt + output + tree.path(node), len(prompt), params)
        assert ((laws[node] > 0) == (expected > 0)).all()
        np.testing.assert_allclose(laws[node], expected, rtol=1e-12, atol=0)


def test_a_token_weighs_the_same_bits_whether_committed_or_drafted() -> None:
    """Also: a law does not depend on how many nodes are judged together."""
    generator = np.random.default_rng(3)
    params = SamplingParams(
        temperature=0.7, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.1
    )
    tokens = [4, 4, 1, 4, 1]
    logits = generator.normal(size=(6, V)) * 3
    together = laws_at(logits, [1, 2, 4], 1, DraftTree.chain(tokens), params)
    for node in range(6):
        alone = laws_at(logits[node : node + 1], [1, 2, 4, *tokens[:node]], 1, EMPTY_TREE, params)
        assert dense(alone)[0].tobytes() == dense(together)[node].tobytes()


def test_wide_laws_equal_the_oracle_through_every_top_p_width() -> None:
    """A top-p search that starts with few candidates must find the nucleus of flat laws too."""
    generator = np.random.default_rng(0)
    for scale, top_p, params in (
        (3.0, 0.5, {}),
        (0.1, 0.9, {}),
        (0.0, 0.75, {}),
        (1.0, 0.999, {"top_k": 5000}),
        (0.1, 1.0, {"min_p": 0.9}),
    ):
        logits = (generator.normal(size=(2, 6000)) * scale).astype(np.float32)
        chosen = SamplingParams(top_p=top_p, **params)
        histories = Histories(np.array([1], dtype=np.uint32), 1, ((), ()))
        laws = dense(target_laws(torch.from_numpy(logits), histories, chosen, 6000), 6000)
        for row, law in zip(logits, laws, strict=True):
            expected = reference_law(row, [1], 1, chosen)
            assert ((law > 0) == (expected > 0)).all()
            np.testing.assert_allclose(law, expected, rtol=1e-9)


def test_ids_beyond_the_tokenizer_have_probability_zero_even_with_the_largest_logits() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 90.0, 99.0]])
    histories = Histories(np.array([0], dtype=np.uint32), 1, ((),))
    for params in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=4)):
        assert target_laws(logits, histories, params, 3).row(0)[0].max() == 2


@pytest.mark.scenario("B44")
def test_penalties_count_prompt_output_and_exactly_the_path_to_each_node() -> None:
    """For later rows the last sampled token was counted twice."""
    context, draft = [5, 6, 7, 7], [7, 7, 3]
    params = SamplingParams(presence_penalty=0.7, frequency_penalty=0.7)
    logits = np.linspace(-1, 2, 4 * V).reshape(4, V)
    tree = DraftTree.chain(draft)
    laws = dense(laws_at(logits, context, 2, tree, params))
    for i in range(4):
        scores = np.array(reference_scores(logits[i].astype(np.float32), context + draft[:i], 2, params))
        np.testing.assert_allclose(laws[i], np.exp(scores) / np.exp(scores).sum(), rtol=1e-6)
        twice = np.array(reference_scores(logits[i].astype(np.float32), context + draft[:i] * 2, 2, params))
        fault = np.exp(twice) / np.exp(twice).sum()
        assert (i == 0) == np.allclose(laws[i], fault, rtol=1e-6)


@pytest.mark.scenario("B41")
def test_min_tokens_masks_every_end_id_on_exactly_the_rows_before_it() -> None:
    """The mask was applied once per step, or to the main EOS id only."""
    logits = np.zeros((5, V))
    logits[:, [2, 3]] = 9.0  # the target would end at once
    params = SamplingParams(min_tokens=3, end_ids=(2, 3), temperature=0)
    for committed in range(5):
        laws = dense(laws_at(logits, [0] + [1] * committed, 1, DraftTree.chain([1, 1, 1, 1]), params))
        for i in range(5):
            assert (laws[i, [2, 3]].sum() == 0) == (committed + i < 3)


@pytest.mark.scenario("B46")
def test_bias_and_min_p_hold_on_every_verified_row() -> None:
    """Min_p and logit_bias reached the bonus row only."""
    generator = np.random.default_rng(1)
    params = SamplingParams(min_p=0.3, logit_bias=((3, -100.0), (4, 5.0)))
    laws = dense(laws_at(generator.normal(size=(6, V)), [0], 1, DraftTree.chain([4] * 5), params))
    assert (laws[:, 3] == 0).all()
    kept = np.where(laws > 0, laws, np.inf)
    assert (kept.min(axis=1) >= 0.3 * laws.max(axis=1) * (1 - 1e-12)).all()


# For each field: parameters under which it decides the greedy or only possible token at a node behind draft token 1.
DECIDES: dict[str, tuple[SamplingParams, SamplingParams]] = {
    "temperature": (SamplingParams(temperature=0.05), SamplingParams(temperature=50.0)),
    "top_k": (SamplingParams(top_k=1), SamplingParams()),
    "top_p": (SamplingParams(top_p=0.1), SamplingParams()),
    "min_p": (SamplingParams(min_p=0.99), SamplingParams()),
    "repetition_penalty": (SamplingParams(repetition_penalty=5.0), SamplingParams()),
    "presence_penalty": (SamplingParams(presence_penalty=3.0), SamplingParams()),
    "frequency_penalty": (SamplingParams(frequency_penalty=3.0), SamplingParams()),
    "logit_bias": (SamplingParams(logit_bias=((6, 9.0),)), SamplingParams()),
    "min_tokens": (SamplingParams(min_tokens=9, end_ids=(1,)), SamplingParams(end_ids=(1,))),
    "end_ids": (SamplingParams(min_tokens=9, end_ids=(1,)), SamplingParams(min_tokens=9, end_ids=(5,))),
}


@pytest.mark.scenario("B47")
@pytest.mark.parametrize("name", [f.name for f in fields(SamplingParams) if f.name != "logprobs"])
def test_every_sampling_field_changes_the_law_of_drafted_rows(name: str) -> None:
    """Penalties were dropped on the speculative path. A new field without an entry fails; logprobs change no law."""
    given, without = DECIDES[name]
    logits = np.tile([0.0, 2.0, 1.5, 0.5, 0.0, 1.0, 0.5, 0.0, 0.0], (2, 1))
    changed = dense(laws_at(logits, [0, 1], 1, DraftTree.chain([1]), given))[1]
    plain = dense(laws_at(logits, [0, 1], 1, DraftTree.chain([1]), without))[1]
    assert abs(changed - plain).sum() > 0.1
    np.testing.assert_allclose(changed, reference_law(logits[1], [0, 1, 1], 1, given), rtol=1e-12)


@pytest.mark.scenario("B53")
def test_a_mass_of_exactly_top_p_is_enough() -> None:
    """One token more was kept when the running mass equalled top_p; float32 decided."""
    p = torch.tensor([[0.5, 0.3, 0.1, 0.1]], dtype=torch.float64)
    assert top_p_kept(p, 0.8).tolist() == [[True, True, False, False]]
    assert top_p_kept(p, 0.80001).tolist() == [[True, True, True, False]]
    assert top_p_kept(p.float().double(), 0.8)[0, 2] == (np.float32(0.5) + np.float32(0.3) < 0.8)


@pytest.mark.scenario("B130")
@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-30, 1e-6, 1e-5, 1e-3])
def test_tiny_temperatures_never_overflow_and_are_greedy_below_the_one_threshold(temperature: float) -> None:
    """A tiny temperature overflowed the logits to inf, softmax gave NaN."""
    law = one_law([60_000.0, -60_000.0, 59_999.0, 60_000.0 - 2**-8], SamplingParams(temperature=temperature))
    assert np.isfinite(law).all()
    assert law.argmax() == 0
    if temperature < GREEDY_BELOW:
        assert law[0] == 1.0


@pytest.mark.scenario("B131")
def test_a_banned_token_stays_banned_at_every_temperature() -> None:
    """A dummy temperature of -1 turned -inf into +inf."""
    for temperature in (0.0, 1e-5, 1.0):
        law = one_law([5.0, 1.0, 0.0], SamplingParams(temperature=temperature, logit_bias=((0, -math.inf),)))
        assert np.isfinite(law).all()
        assert law[0] == 0.0


@pytest.mark.scenario("B132")
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias=tuple((v, -math.inf) for v in range(3))),
        SamplingParams(logit_bias=((0, -math.inf), (1, -math.inf)), min_tokens=1, end_ids=(2,)),
        SamplingParams(temperature=0, top_k=1, logit_bias=tuple((v, -math.inf) for v in range(3))),
    ],
)
def test_no_possible_token_is_a_typed_error(params: SamplingParams) -> None:
    """Softmax of nothing but -inf is NaN, or token 0 in silence."""
    with pytest.raises(EmptyLaw) as caught:
        one_law([0.0, 1.0, 2.0], params)
    assert caught.value.reason == "EMPTY_LAW"


@pytest.mark.scenario("B134")
@pytest.mark.parametrize("top_p", [0.0, 1e-8, 1e-4, 1e-3])
def test_the_likeliest_token_survives_any_top_p(top_p: float) -> None:
    """A very small top_p masked every token."""
    generator = np.random.default_rng(0)
    for scale in (0.0, 8.0):
        for dtype in (torch.float32, torch.bfloat16):
            logits = torch.from_numpy(generator.normal(size=(1, 4096)) * scale).to(dtype).float()
            histories = Histories(np.array([0], dtype=np.uint32), 1, ((),))
            law = dense(target_laws(logits, histories, SamplingParams(top_p=top_p), 4096), 4096)[0]
            assert law[int(logits[0].argmax())] > 0
            assert law.sum() == pytest.approx(1.0)
            if scale:
                assert law.max() == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_the_models_fault(bad: float) -> None:
    with pytest.raises(BadLogits):
        one_law([0.0, bad, 1.0], SamplingParams())


def test_minus_infinity_in_the_logits_is_a_ban() -> None:
    assert one_law([0.0, -math.inf, 0.0], SamplingParams()).tolist() == [0.5, 0.0, 0.5]


def test_top_k_keeps_exactly_k_with_ties_to_the_lowest_ids() -> None:
    values = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    assert top_k_ids(values, 2).tolist() == [[1, 2], [0, 1], [0, 1]]


@pytest.mark.scenario("B16")
def test_an_exact_tie_goes_to_the_lowest_id() -> None:
    """Greedy, top-k and a nucleus of one must agree on it."""
    logits = [0.0, 3.0, 3.0, 1.0]
    for params in (SamplingParams(temperature=0), SamplingParams(top_k=1), SamplingParams(top_p=1e-9)):
        assert one_law(logits, params).tolist() == [0.0, 1.0, 0.0, 0.0]
