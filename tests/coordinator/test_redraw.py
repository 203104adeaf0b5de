"""A lie put right bends nothing: the exact output law, by enumeration, of a drafter that draws from one law and reports
another, which may even depend on the lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coordinator import redraw
from coordinator.redraw import redrawn
from specdec.core.acceptance import Rule, emitted, token_rule
from specdec.core.draft import NO_DRAFT, Draft, DraftKind, DraftLaw
from specdec.core.laws import draw
from specdec.core.traversal import traversal_rule
from specdec.core.tree import DraftTree
from specdec.core.verification import NO_OUTSIDE, TargetLaw, Verification, VerifyForm
from tests.core.integration import Law, assert_lawful, distance, outcome_law

P = (0.5, 0.3, 0.2)
IDS = np.arange(3, dtype=np.uint32)
DRAWN = np.array([0.6, 0.3, 0.1])
REPORTED = [np.array(w, dtype=np.float16) for w in ([1, 1, 3], [5, 1, 1], [1, 4, 2])]  # by the token before, -1: first
NODES = 3
Shape = Callable[[Any], Draft]


@dataclass
class View:
    """A run of the uniforms, each read on its own, so that the integration sees which one decides what."""

    us: Any
    start: int

    def __getitem__(self, i: int) -> Any:
        return self.us[self.start + i]


def chain(us: Any) -> Draft:
    """The law reported for the second token depends on the first, as the drafter drew it."""
    one = draw(DRAWN, us[1])
    two = draw(DRAWN, us[2])
    laws = tuple(DraftLaw(IDS, REPORTED[i]) for i in (-1, one))
    return Draft(DraftTree.chain([one, two]), DraftKind.SAMPLED, laws)


def siblings(us: Any) -> Draft:
    left = DRAWN.copy()
    one = draw(left, us[1])
    left[one] = 0.0
    two = draw(left, us[2])
    tree = DraftTree(np.array([one, two], dtype=np.uint32), np.array([0, 0]))
    return Draft(tree, DraftKind.SAMPLED_WITHOUT_REPLACEMENT, (DraftLaw(IDS, REPORTED[0]),))


def output_law(
    shape: Shape, mend: Callable[..., Draft], monkeypatch: pytest.MonkeyPatch, rule: Rule = token_rule
) -> Law:
    """Of the first two tokens: one cycle, then the target alone."""

    def cycle(us: Any) -> tuple[int, ...]:
        drafting, judging = View(us, 0), View(us, NODES)
        monkeypatch.setattr(redraw, "uniforms", lambda *key: drafting)
        draft = mend(shape(drafting), 0, 0)
        target = TargetLaw(IDS, np.array(P, dtype=np.float32), 0.0)
        drawn = [NO_OUTSIDE if children else 9 for children in draft.tree.children]  # 9: drawn from p, whatever it is
        laws = (target,) * len(draft.tree.inner_nodes)
        verification = Verification(VerifyForm.PQ, np.array(drawn, dtype=np.uint32), laws)
        return tuple(emitted(draft, rule(draft, verification, judging)).tolist()[:2])  # type: ignore[arg-type]

    law: Law = {}
    for tokens, mass in outcome_law(cycle, 2 * NODES, cells=12).items():
        known = tuple(t for t in tokens if t != 9)
        for rest in np.ndindex(*(3,) * (2 - len(known))):
            chance = float(np.prod([P[t] for t in rest]))
            law[known + rest] = law.get(known + rest, 0.0) + mass * chance
    return law


TARGET: Law = {(a, b): P[a] * P[b] for a in range(3) for b in range(3)}


@pytest.mark.scenario("B01", "B09")
@pytest.mark.parametrize("rule", [token_rule, traversal_rule])
@pytest.mark.parametrize("shape", [chain, siblings])
def test_a_draft_put_right_yields_the_targets_law(shape: Shape, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """B01, B09: exactly, though most of its draws are lies."""
    assert_lawful(output_law(shape, redrawn, monkeypatch, rule), TARGET, 1e-7)


def believed(draft: Draft, seed: int, base: int) -> Draft:
    return draft


def dropped(draft: Draft, seed: int, base: int) -> Draft:
    return draft if redrawn(draft, seed, base) is draft else NO_DRAFT


@pytest.mark.parametrize("shape", [chain, siblings])
@pytest.mark.parametrize("mend", [believed, dropped])
def test_to_believe_it_or_to_drop_it_does_not(
    shape: Shape, mend: Callable[..., Draft], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative controls: a draft kept for its tokens is as biased as one that is believed."""
    assert distance(output_law(shape, mend, monkeypatch), TARGET) > 0.01


def test_an_honest_draft_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    us = np.array([0.0, 0.3, 0.9])
    monkeypatch.setattr(redraw, "uniforms", lambda *key: us)
    laws = (DraftLaw(IDS, REPORTED[-1]), DraftLaw(IDS, REPORTED[0]))
    tokens = [draw(law.q, float(u)) for law, u in zip(laws, us[1:], strict=True)]
    draft = Draft(DraftTree.chain(tokens), DraftKind.SAMPLED, laws)
    assert redrawn(draft, 0, 0) is draft
