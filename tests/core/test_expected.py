from __future__ import annotations

import numpy as np
import pytest

from specdec.core.acceptance import Rule, token_rule
from specdec.core.block import block_rule
from specdec.core.draft import Draft, DraftKind
from specdec.core.expected import chain_survival
from specdec.core.tree import DraftTree
from specdec.core.verification import TargetLaw, Verification, VerifyForm
from tests.core.cycles import Cycling
from tests.core.integration import outcome_law
from tests.core.toys import B2, CHAIN, SPARSE_T3, T3, T4, Toy, drafts, law_of, pq_reply, random_toy

SAMPLED = DraftKind.SAMPLED


@pytest.mark.parametrize(
    ("toy", "k"),
    [(B2, 2), (T3, 3), (T4, 2), (SPARSE_T3, 2), (random_toy(1), 3), (random_toy(2, vocab=4, support=2), 2)],
    ids=str,
)
def test_over_all_chains_the_mean_is_what_the_rules_accept(toy: Toy, k: int) -> None:
    """Position by position, and in all."""
    token, block = np.zeros(k), np.zeros(k)
    counted: dict[Rule, np.ndarray] = {token_rule: np.zeros(k), block_rule: np.zeros(k)}
    for draft, mass in drafts(toy, SAMPLED, CHAIN[k], ()):
        verification, _ = pq_reply(toy, draft, ())
        survival = chain_survival(draft, verification)
        token += mass * survival.token
        block += mass * survival.block
        for rule, counts in counted.items():
            law = outcome_law(lambda us, r=rule, d=draft, v=verification: len(r(d, v, us).nodes), k + 1)  # type: ignore[misc]
            for length, share in law.items():
                counts[:length] += mass * share
    assert token == pytest.approx(counted[token_rule], abs=1e-6)
    assert block == pytest.approx(counted[block_rule], abs=1e-6)
    assert block.sum() == pytest.approx(
        Cycling(block_rule, VerifyForm.PQ, SAMPLED, CHAIN[k]).expected_accepted(toy), abs=1e-6
    )


def test_one_chain_by_hand() -> None:
    """T3, tokens 2 then 0: alpha .6; then with 1/3 left .2 of token 0, .2 of 1 and .2 / 3 of 2 against q."""
    law = law_of([1, 1, 3])
    target = TargetLaw(law.ids, np.array([0.5, 0.3, 0.2], np.float32), 0.0)
    draft = Draft(DraftTree.chain([2, 0]), SAMPLED, (law, law))
    survival = chain_survival(draft, Verification(VerifyForm.PQ, np.array([9, 9, 9], np.uint32), (target, target)))
    assert survival.token == pytest.approx([0.6, 0.6 / 3], abs=1e-6)
    assert survival.block == pytest.approx([0.6, 0.5 / 3 + 0.1 + 0.2 / 3], abs=1e-6)
    assert survival.accepted == pytest.approx((0.8, 0.6 + 1 / 3), abs=1e-6)


def test_the_empty_chain_accepts_nothing() -> None:
    draft = Draft(DraftTree.chain([]), SAMPLED)
    survival = chain_survival(draft, Verification(VerifyForm.PQ, np.array([1], np.uint32)))
    assert survival.accepted == (0.0, 0.0)


def test_trees_are_refused() -> None:
    draft = Draft(DraftTree(np.array([0, 1], np.uint32), np.array([0, 0])), SAMPLED, (law_of([1, 1]),))
    with pytest.raises(AssertionError, match="chain"):
        chain_survival(draft, Verification(VerifyForm.PQ, np.array([1, 1, 1], np.uint32)))
