"""Strategies for everything that travels, and equality of dataclasses that hold arrays."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.sampling import SamplingParams
from specdec.core.step_time import StepTimeTable
from specdec.core.tree import DraftTree, Ids
from specdec.core.verification import NO_OUTSIDE, Logprobs, TargetLaw, Verification, VerifyForm
from specdec.edge.messages import (
    DrafterInfo,
    DraftRequest,
    Load,
    OpenSession,
    Refusal,
    ReplicaInfo,
    StaleContext,
    Timing,
    VerifyRequest,
)

VOCAB = 49_152

u32 = st.integers(0, 2**32 - 1)
token = st.integers(0, VOCAB - 1)
text = st.text(max_size=12)
unit = st.floats(0, 1)
penalty = st.floats(-2, 2)


def same(a: Any, b: Any) -> bool:
    """Equality by value and by dtype, arrays included."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def ids(elements: st.SearchStrategy[int], max_size: int) -> st.SearchStrategy[Ids]:
    return st.lists(elements, max_size=max_size).map(lambda values: np.array(values, np.uint32))


params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_k=u32,
    top_p=unit,
    min_p=unit,
    repetition_penalty=st.floats(0.1, 10),
    presence_penalty=penalty,
    frequency_penalty=penalty,
    logit_bias=st.lists(st.tuples(token, st.floats(-100, 100, width=32)), max_size=3).map(tuple),
    min_tokens=u32,
    end_ids=st.lists(token, max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
)
layers = st.lists(st.integers(0, 99), max_size=4, unique=True).map(lambda numbers: tuple(sorted(numbers)))
sessions = st.builds(
    OpenSession,
    session_id=text,
    params=params,
    seed=st.integers(0, 2**64 - 1),
    turn_start=u32,
    drafter=text,
    feature_layers=layers,
)
timings = st.builds(Timing, u32, u32, u32, u32)
loads = st.builds(Load, u32, u32, u32, u32, st.booleans())
others = st.builds(StaleContext, u32) | st.builds(Refusal, text, text, text)


@st.composite
def step_times(draw: st.DrawFn) -> StepTimeTable:
    rows = draw(st.lists(st.integers(1, 4096), min_size=1, max_size=5, unique=True).map(sorted))
    contexts = draw(st.lists(st.integers(0, 8192), min_size=1, max_size=3, unique=True).map(sorted))
    times = st.lists(st.floats(2**-16, 8, width=32), min_size=len(contexts), max_size=len(contexts))
    return StepTimeTable.of(rows, contexts, [draw(times) for _ in rows])


numbers = ("vocab_size", "max_context", "max_nodes", "token_budget", "kv_block_size", "num_layers", "hidden_size")
infos = st.builds(
    ReplicaInfo,
    **dict.fromkeys(numbers, u32),
    eos_ids=st.lists(token, max_size=3).map(tuple),
    drafters=st.just(("ngram", "eagle", "lm")),
    load=loads,
    config=st.dictionaries(text, text, max_size=3),
    step_times=st.none() | step_times(),
    base_fingerprint=text,
    drafter_infos=st.lists(
        st.builds(
            DrafterInfo,
            name=st.sampled_from(["ngram", "eagle", "lm"]),
            tree=st.booleans(),
            feature_layers=layers,
            feature_size=u32,
            target_base_fingerprint=text,
        ),
        max_size=3,
        unique_by=lambda drafter: drafter.name,
    ).map(tuple),
)


@st.composite
def trees(draw: st.DrawFn, max_tokens: int = 12) -> DraftTree:
    n = draw(st.integers(0, max_tokens))
    tokens = np.array(draw(st.lists(token, min_size=n, max_size=n)), np.uint32)
    if draw(st.booleans()):
        return DraftTree.chain(tokens)
    parents = [draw(st.integers(0, i)) for i in range(n)]
    return DraftTree(tokens, np.array(parents, np.int64))


@st.composite
def supports_of(draw: st.DrawFn, tree: DraftTree) -> tuple[Ids, ...]:
    """Supports that hold each inner node's children."""
    out = []
    for node in tree.inner_nodes:
        children = [tree.token(child) for child in tree.children[node]]
        more = draw(st.lists(token, max_size=6))
        out.append(np.array(list(dict.fromkeys([*children, *more])), np.uint32))
    return tuple(out)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    tree, kind = draw(trees()), draw(st.sampled_from(DraftKind))
    laws = []
    if kind is not DraftKind.CHOSEN:
        for support in draw(supports_of(tree)):
            weights = draw(st.lists(st.floats(0.125, 1, width=16), min_size=len(support), max_size=len(support)))
            laws.append(DraftLaw(support, np.array(weights, np.float16)))
    return Draft(tree, kind, tuple(laws), draw(text), draw(st.floats(0, 99, width=32)))


draft_requests = st.builds(
    DraftRequest,
    cycle=u32,
    offset=u32,
    token_ids=ids(token, max_size=9),
    num_draft_tokens=st.integers(1, 255),
    kind=st.sampled_from([DraftKind.CHOSEN, DraftKind.SAMPLED]),
    support=st.integers(1, 255),
    budget_us=u32,
    traceparent=text,
    open=st.none() | sessions,
)


@st.composite
def verify_requests(draw: st.DrawFn) -> VerifyRequest:
    tree, form = draw(trees()), draw(st.sampled_from(VerifyForm))
    supports = draw(supports_of(tree)) if form is VerifyForm.PQ else ()
    common = (draw(u32), draw(u32), draw(ids(token, max_size=9)))
    want, budget = draw(st.booleans()), draw(u32)
    opening = draw(st.none() | sessions)
    return VerifyRequest(*common, tree, form, supports, want, budget, draw(text), opening)


@st.composite
def verifications(draw: st.DrawFn, request: VerifyRequest, logprobs: int | None) -> Verification:
    """A lawful answer to `request`."""
    tree = request.tree
    rng = np.random.default_rng(draw(u32))
    drawn = rng.integers(0, VOCAB, tree.num_nodes).astype(np.uint32)
    laws = []
    for node, support in zip(tree.inner_nodes, request.supports, strict=False):
        whole = rng.dirichlet(np.ones(len(support) + 1)).astype(np.float32)
        if draw(st.booleans()):
            whole = np.append(whole[:-1] / whole[:-1].sum(), np.float32(0))
            drawn[node] = NO_OUTSIDE
        while drawn[node] in support:
            drawn[node] = rng.integers(VOCAB)
        laws.append(TargetLaw(support, whole[:-1], float(whole[-1])))
    child_p = None
    typical = request.form is VerifyForm.TYPICAL
    if typical or (request.form is VerifyForm.Y and request.want_child_p):
        child_p = rng.random(tree.num_draft_tokens, dtype=np.float32)
    raw = None if logprobs is None else _logprobs(rng, request, logprobs)
    entropies = rng.random(tree.num_nodes, dtype=np.float32) if typical else None
    return Verification(request.form, drawn, tuple(laws), child_p, raw, entropies)


def _logprobs(rng: np.random.Generator, request: VerifyRequest, top: int) -> Logprobs:
    nodes = request.tree.num_nodes
    return Logprobs(
        -rng.random(nodes, dtype=np.float32),
        tuple(-rng.random(len(support), dtype=np.float32) for support in request.supports),
        rng.integers(0, VOCAB, (nodes, top)).astype(np.uint32),
        -rng.random((nodes, top), dtype=np.float32),
    )
