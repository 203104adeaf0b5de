"""Hidden states that an engine sends: those of the very rows it computed, each position once, whatever else runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from specdec.core.features import FEATURE_WINDOW, VerifiedFeatures
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.messages import OpenSession, Refusal, VerifyRequest
from specdec.lm.features import encode
from specdec.lm.network import BLOCK
from specdec.lm.runner import Runner, Segment
from target_service.engine import Engine
from target_service.features import Delivered
from target_service.session import VerifyJob, VerifyResult
from tests.target_service.conftest import VOCAB, MakeEngine
from tests.target_service.driver import GREEDY, Turn, bushes, generate, guesses, ids, run
from tests.target_service.test_engine import prompt

LAYERS = (0, 1, 2)


def truth(engine: Engine, context: Sequence[int], layers: Sequence[int]) -> list[bytes]:
    """Per position, its row: of a runner of its own, which computes the context in one piece."""
    runner = Runner(engine._runner.loaded, len(context) + BLOCK)
    [computed] = runner.compute([Segment(runner.new_sequence(), ids(context), tapped=len(context))], layers)
    return [encode(row[None]) for row in computed.hidden]


def alike(a: bytes, b: bytes, layers: int) -> bool:
    """Rows of the same state: a tree's keys lie in another order than a context's, so sums round otherwise, and a value
    half way between two steps of int8 may fall to either side."""
    x, y = [np.frombuffer(data, np.int8).reshape(layers, -1) for data in (a, b)]
    one, other = [np.ascontiguousarray(part[:, :4]).view("<f4") for part in (x, y)]
    steps = np.abs(x[:, 4:].astype(int) - y[:, 4:])
    return bool(np.allclose(one, other, rtol=1e-4) and steps.max() <= 1 and steps.mean() < 0.02)


def rows_of(features: VerifiedFeatures) -> list[bytes]:
    return [features.rows.take([i]).data for i in range(features.rows.rows)]


@dataclass
class Reading(Turn):
    """A turn whose drafter reads `layers`; rows: what came, by position."""

    layers: tuple[int, ...] = LAYERS
    rows: dict[int, bytes] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)

    def next_job(self, engine: Engine) -> VerifyJob:
        job = super().next_job(engine)
        opening = job.request.open
        request = replace(job.request, open=opening and replace(opening, feature_layers=self.layers))
        return VerifyJob(job.session, request)

    def take(self, job: VerifyJob, result: VerifyResult) -> None:
        root = len(self.context) - 1
        super().take(job, result)
        features = result.features
        assert features is not None, "a session that reads gets its rows"
        assert features.rows.end == len(self.context) - 1, "root and walk: all but the token that was drawn last"
        assert features.rows.offset == root - features.context_rows
        self.counts.append(features.context_rows)
        for position, row in enumerate(rows_of(features), features.rows.offset):
            assert position not in self.rows, f"position {position} came twice"
            self.rows[position] = row

    def is_right(self, engine: Engine) -> bool:
        """From the window before its prompt's end on, one row per position, that of an undisturbed forward."""
        expected = truth(engine, self.context, self.layers)
        start = max(0, len(self.prompt) - 1 - FEATURE_WINDOW)
        assert self.counts == [len(self.prompt) - 1 - start] + [0] * (len(self.results) - 1)
        assert list(self.rows) == list(range(start, len(self.context) - 1))
        return all(alike(row, expected[i], len(self.layers)) for i, row in self.rows.items())


@pytest.mark.parametrize("budget", [17, 64])
@pytest.mark.parametrize("kv_tokens", [176, 2000])
def test_rows_are_those_of_an_undisturbed_forward_in_any_company(
    make_engine: MakeEngine, budget: int, kv_tokens: int
) -> None:
    """Chunked prompts, chains, trees, sessions that read other layers or none, and room for little more than one."""
    lengths, turns = [3, 40, 90, 100, 8, 33], []
    for i, length in enumerate(lengths):
        start = prompt(length, i)
        known = start + generate(make_engine(), start, 24)
        draft = bushes(known, i, VOCAB, 8) if i % 2 else guesses(known, i % 4, 2, VOCAB)
        layers = [LAYERS, (2,), (), (1, 2), LAYERS, (0,)][i]
        kind = Reading if layers else Turn
        fields: dict[str, Any] = {"layers": layers} if layers else {}
        turns.append(kind(start, 24, draft, start=i, session_id=str(i), **fields))
    random.Random(budget).shuffle(turns)
    engine = make_engine(token_budget=budget, kv_tokens=kv_tokens)
    run(engine, turns)
    readers = [turn for turn in turns if isinstance(turn, Reading)]
    assert len(readers) == 5 and all(reader.is_right(engine) for reader in readers)


def test_negative_control_rows_of_a_neighbour_are_seen(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    compute = engine._runner.compute

    def rolled(segments: Any, layers: Any) -> Any:
        return [replace(part, hidden=part.hidden.roll(1, 0)) for part in compute(segments, layers)]

    monkeypatch.setattr(engine._runner, "compute", rolled)
    reader = Reading(prompt(20), 5)
    run(engine, [reader])
    assert not reader.is_right(engine)


@pytest.mark.parametrize("session_id", ["chat", "another"])
@pytest.mark.parametrize("length", [2, BLOCK, BLOCK + 1, FEATURE_WINDOW + 1, 3 * BLOCK + 1, 140])
def test_what_is_held_already_is_computed_again_for_a_window_and_no_further(
    make_engine: MakeEngine, session_id: str, length: int
) -> None:
    """A prefix hit has keys and values but no hidden states; what was drawn before is drawn again."""
    engine = make_engine(token_budget=256)
    first, second = Turn(prompt(length), 6, session_id="chat"), Reading(prompt(length), 6, session_id=session_id)
    run(engine, [first])
    run(engine, [second])
    assert second.is_right(engine) and second.output == first.output
    start = max(0, length - 1 - FEATURE_WINDOW)
    assert second.results[0].computed_tokens == length - start // BLOCK * BLOCK


def ask(engine: Engine, session: Any, context: list[int], **fields: Any) -> VerifyResult:
    [(_, result)] = engine.step([VerifyJob(session, VerifyRequest(0, 0, ids(context), **fields))])
    return result


def reading(engine: Engine, layers: tuple[int, ...] = LAYERS, params: SamplingParams = GREEDY) -> Any:
    return engine.open(OpenSession("s", params, 7, 1, feature_layers=layers))


def test_every_node_has_its_row_where_the_walk_is_not_the_engines_to_take(make_engine: MakeEngine) -> None:
    """Form PQ: the coordinator decides. Whatever path it takes, none of its rows is sent again."""
    engine = make_engine()
    context, tree = prompt(9), DraftTree(ids([4, 5, 6, 4]), np.array([0, 0, 1, 2]))
    supports = tuple(ids([4, 5, 6]) for _ in tree.inner_nodes)
    session = reading(engine, params=SamplingParams(temperature=1.0))
    features = ask(engine, session, context, tree=tree, form=VerifyForm.PQ, supports=supports).features
    assert features is not None and (features.context_rows, features.rows.offset, features.rows.rows) == (8, 0, 13)
    rows = rows_of(features)
    assert rows[:9] == truth(engine, context, LAYERS)
    for node in range(1, tree.num_nodes):
        assert alike(rows[8 + node], truth(engine, [*context, *tree.path(node)], LAYERS)[-1], len(LAYERS))
    taken = ask(engine, session, [*context, 5, 4, 30]).features
    assert taken is not None and (taken.context_rows, taken.rows.rows) == (0, 1)


def test_a_context_that_changes_is_sent_from_where_it_does(make_engine: MakeEngine) -> None:
    engine = make_engine(token_budget=256)
    session = reading(engine)
    ask(engine, session, prompt(100))
    changed = [*prompt(100)[:80], (prompt(100)[80] + 1) % VOCAB, *prompt(18, 5)]
    features = ask(engine, session, changed).features
    assert features is not None and (features.rows.offset, features.context_rows) == (80, 18)
    assert rows_of(features) == truth(engine, changed, LAYERS)[80:]
    again = ask(engine, session, changed[:90]).features
    assert again is not None and (again.rows.offset, again.context_rows) == (89, 0)


def test_other_layers_on_the_same_stream_begin_anew(make_engine: MakeEngine) -> None:
    engine = make_engine(token_budget=256)
    session = reading(engine, ())
    assert ask(engine, session, prompt(100)).features is None
    context = prompt(100)
    opened = OpenSession("s", GREEDY, 7, 1, feature_layers=(1,))
    features = ask(engine, session, context, open=opened).features
    assert features is not None and features.context_rows == FEATURE_WINDOW
    assert rows_of(features) == truth(engine, context, (1,))[99 - FEATURE_WINDOW :]


def test_layers_that_the_model_has_not_are_refused_by_name(make_engine: MakeEngine) -> None:
    engine = make_engine()
    depth = engine._runner.loaded.num_layers
    result = ask(engine, reading(engine, (1, depth + 1)), prompt(5)).result
    assert isinstance(result, Refusal)
    assert (result.reason, result.field) == ("INVALID_ARGUMENT", "open.feature_layers")
    assert ask(engine, reading(engine, (depth,)), prompt(5)).features is not None


def test_nothing_is_tapped_for_those_who_read_nothing(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    compute = engine._runner.compute
    seen: list[tuple[int, tuple[int, ...]]] = []

    def watched(segments: Any, layers: Any) -> Any:
        seen.append((sum(s.tapped for s in segments), tuple(layers)))
        return compute(segments, layers)

    monkeypatch.setattr(engine._runner, "compute", watched)
    turn = Turn(prompt(70), 8)
    run(engine, [turn])
    assert set(seen) == {(0, ())} and all(result.features is None for result in turn.results)


def test_what_was_refused_was_not_delivered(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    session, compute = reading(engine), engine._runner.compute

    def poisoned(segments: Any, layers: Any) -> Any:
        return [replace(part, logits=torch.full_like(part.logits, torch.nan)) for part in compute(segments, layers)]

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "compute", poisoned)
        refused = ask(engine, session, prompt(20))
    assert isinstance(refused.result, Refusal) and refused.features is None
    features = ask(engine, session, prompt(20)).features
    assert features is not None and rows_of(features) == truth(engine, prompt(20), LAYERS)


@pytest.mark.parametrize(
    ("context", "reach"),
    [
        ([1, 2], 2),
        ([1, 2, 3], 3),
        ([1, 9, 3], 1),
        ([1, 2, 3, 7, 8], 4),
        ([1, 2, 4, 6, 0], 4),
        ([1, 2, 4, 5], 4),
        ([1], 1),
    ],
)
def test_what_was_delivered_reaches_down_the_tree(context: list[int], reach: int) -> None:
    """Equal siblings are followed together."""
    tree = DraftTree(ids([3, 4, 4, 7, 5, 6]), np.array([0, 0, 0, 1, 2, 3]))
    assert Delivered(ids([1, 2]), tree).reach(ids(context)) == reach


def test_in_the_y_form_only_the_walk_is_sent(make_engine: MakeEngine) -> None:
    engine = make_engine()
    context = prompt(9)
    y = generate(make_engine(), context, 3)
    off = (y[0] + 1) % VOCAB
    tree = DraftTree(ids([off, y[0], y[1], off]), np.array([0, 0, 2, 1]))
    result = ask(engine, reading(engine), context, tree=tree)
    assert isinstance(result.result, Verification) and result.features is not None
    expected = truth(engine, [*context, *y[:2]], LAYERS)
    rows = rows_of(result.features)
    assert rows[:9] == expected[:9] and len(rows) == 11
    assert all(alike(a, b, len(LAYERS)) for a, b in zip(rows, expected, strict=True))
