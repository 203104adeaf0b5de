"""The law with the real keys: 200,000 seeds, two tokens each over as many cycles as they take, chi-square
against the target's joint law. A cycle whose numbers were used before must be noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy.stats import chi2

from specdec.core.acceptance import RULES, emitted, follow
from specdec.core.draft import Draft, DraftKind
from specdec.core.laws import check_draft, check_draws, draw, draw_siblings
from specdec.core.randomness import Purpose, coupled_choice, target_key, uniforms
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification, VerifyForm
from tests.core.toys import PLACEHOLDER, T3, Tokens, Toy, pq_reply, random_toy, sequence_law

SEEDS = 200_000
FEWER = 50_000  # for the second shape of one rule
TOY = random_toy(24, vocab=3, support=2, memory=2)
IDS = np.arange(3, dtype=np.uint32)
WITHOUT = DraftKind.SAMPLED_WITHOUT_REPLACEMENT
Cycle = Callable[[int, Tokens, int], Tokens]


def p_value(cycle: Cycle, toy: Toy, seeds: int, *, advance: bool = True) -> float:
    """Of two tokens per seed under the target's law. advance False: every cycle has the first one's base."""
    counts: Counter[Tokens] = Counter()
    for seed in range(seeds):
        tokens: Tokens = ()
        while len(tokens) < 2:
            tokens += cycle(seed, tokens, len(tokens) if advance else 0)
        counts[tokens[:2]] += 1
    law = sequence_law(toy, (), 2)
    assert set(counts) <= set(law)
    statistic = sum((counts[t] - seeds * m) ** 2 / (seeds * m) for t, m in law.items())
    return float(chi2.sf(statistic, len(law) - 1))


def sampled_cycle(toy: Toy, kind: DraftKind, rule: str) -> Cycle:
    """A chain of two, or two siblings without replacement of which the first has a child."""
    law_at = cache(toy.draft)

    @cache
    def world(context: Tokens, tokens: Tokens) -> tuple[Draft, Verification]:
        parents = (0, 1) if kind is DraftKind.SAMPLED else (0, 0, 1)
        tree = DraftTree(np.array(tokens, np.uint32), np.array(parents))
        laws = tuple(law_at(context + tuple(tree.path(node))) for node in tree.inner_nodes)
        draft = Draft(tree, kind, laws)
        check_draft(draft, len(toy.p(())))
        return draft, pq_reply(toy, draft, context)[0]

    @cache
    def outside(context: Tokens, draft_tokens: Tokens, node: int) -> np.ndarray:
        draft, _ = world(context, draft_tokens)
        law = pq_reply(toy, draft, context)[1][node]
        return np.array([law.get(v, 0.0) for v in range(len(toy.p(())))])

    def draft_tokens(us: np.ndarray, context: Tokens) -> Tokens:
        root = law_at(context)
        if kind is DraftKind.SAMPLED:
            one = int(root.ids[draw(root.q, us[1])])
            below = law_at((*context, one))
            return one, int(below.ids[draw(below.q, us[2])])
        one, two = (int(root.ids[x]) for x in draw_siblings(root, us[1:3]))
        below = law_at((*context, one))
        return one, two, int(below.ids[draw(below.q, us[3])])

    def cycle(seed: int, context: Tokens, base: int) -> Tokens:
        nodes = 3 if kind is DraftKind.SAMPLED else 4
        tokens = draft_tokens(uniforms(seed, base, Purpose.DRAFT, nodes), context)
        draft, verification = world(context, tokens)
        if seed % 100 == 0:
            check_draws(draft, seed, base)
        got = emitted(draft, RULES[rule](draft, verification, uniforms(seed, base, Purpose.ACCEPT, nodes)))
        if got[-1] >= PLACEHOLDER:
            node = int(got[-1]) - PLACEHOLDER
            z = draw(outside(context, tokens, node), uniforms(seed, base, Purpose.OUTSIDE, nodes)[node])
            got[-1] = z
        return tuple(got.tolist())

    return cycle


def coupled_cycle(toy: Toy) -> Cycle:
    """A chain of one, drawn from q with the target's own noise."""
    target, law_at, unused = cache(toy.p), cache(toy.draft), np.zeros(2)
    drafts = [Draft(DraftTree.chain([x]), coupled=True) for x in range(len(IDS))]

    def cycle(seed: int, context: Tokens, base: int) -> Tokens:
        law, key = law_at(context), target_key(seed, base)
        x = int(law.ids[coupled_choice(law.ids, law.q, key)])
        ys = [coupled_choice(IDS, target(context), key), 0]
        if ys[0] == x:  # else node 1 is not reached
            ys[1] = coupled_choice(IDS, target((*context, x)), target_key(seed, base + 1))
        got = follow(drafts[x], Verification(VerifyForm.Y, np.array(ys, np.uint32)), unused)
        return tuple(emitted(drafts[x], got).tolist())

    return cycle


CYCLES: dict[str, Cycle] = {
    "rejection, chain": sampled_cycle(TOY, DraftKind.SAMPLED, "rejection"),
    "rejection, siblings": sampled_cycle(TOY, WITHOUT, "rejection"),
    "coupled": coupled_cycle(TOY),
}


def test_every_rule_is_tried() -> None:
    assert {name.split(",")[0] for name in CYCLES} == set(RULES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CYCLES)
def test_two_tokens_have_the_targets_joint_law(name: str) -> None:
    assert p_value(CYCLES[name], TOY, FEWER if name == "rejection, siblings" else SEEDS) > 1e-6


@pytest.mark.parametrize("name", CYCLES)
def test_numbers_of_an_earlier_cycle_are_noticed(name: str) -> None:
    assert p_value(CYCLES[name], TOY, 5_000, advance=False) < 1e-6


def test_coupled_drafts_match_as_often_as_theory_says() -> None:
    """T3: 49/85 = sum over v of 1 / sum_w max(p_w / p_v, q_w / q_v)."""
    p, q = T3.p(()), T3.draft(()).q
    theory = sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(3))
    assert theory == pytest.approx(49 / 85, abs=1e-6)
    n = 40_000
    keys = [target_key(seed, 11) for seed in range(n)]
    matches = sum(coupled_choice(IDS, p, key) == coupled_choice(IDS, q, key) for key in keys)
    assert abs(matches / n - theory) < 5 * (theory * (1 - theory) / n) ** 0.5
