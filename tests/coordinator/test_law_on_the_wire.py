"""What the client receives is distributed as the target alone would have it: chi-square over real gRPC, with laws
known exactly. Fixed seeds: the coordinator's own random bits are drawn from a seeded generator here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from coordinator import replica
from coordinator.tokenizer import TextCodec
from protos.generation_pb2 import TOKEN_ORIGIN_RECOVERED
from specdec.core.acceptance import Acceptance, Floats, Rule, token_rule
from specdec.core.draft import Draft, DraftKind
from specdec.core.rules import RULES
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification
from specdec.edge.messages import Refusal
from tests.coordinator.chi_square import SUSPICIOUS, p_value, token_p_value, transition_counts
from tests.core.test_block import formula, pi_for_h, stops_at_the_first_failure
from tests.fakes.replicas import ScriptedDrafter
from tests.fakes.scripted import Request, Stream
from tests.fakes.stack import Answer, Stack, scripted_drafter, scripted_target, stack
from tests.fakes.tables import (
    MARKOV_5,
    MARKOV_5_DRAFT,
    MARKOV_ROWS,
    PAIR_5,
    PAIR_5_DRAFT,
    PAIR_5_P,
    PAIR_5_Q,
    Table,
    letters_folder,
)
from tests.reference import Law

TREE = (0, 0, 1, 1, 2)  # two children; two under the first, one under the second
ALPHA_PAIR_5 = sum(min(p, q) for p, q in zip(PAIR_5_P, PAIR_5_Q, strict=True))
TOKENS = 800


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without a seed gets 64 random bits: here always the same ones."""
    monkeypatch.setattr("coordinator.service.secrets.randbits", random.Random(20).getrandbits)


@dataclass(eq=False)
class HalfRight(ScriptedDrafter):
    """Draws the first `right` tokens from the target's law, the others from its mirror image."""

    right: int = 0

    def _law(self, stream: Stream, path: Sequence[int]) -> Law:
        law = super()._law(stream, path)
        return law if len(path) < self.right else law[::-1]


def accept_if_either_rule_would(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """B11's fault: the token rule, or a fresh draw from the target equals the draft."""
    first = token_rule(draft, verification, uniforms)
    if not draft.tree.num_draft_tokens or first.nodes:
        return first
    law = verification.laws[0]
    fresh = law.ids[np.searchsorted(np.cumsum(law.p), np.random.default_rng(int(uniforms[1] * 1e9)).random())]
    return Acceptance((1,), int(verification.drawn[1]), True, first.alphas) if fresh == draft.tree.token(1) else first


@asynccontextmanager
async def pair(tmp_path: Path, target: Table, draft: Table, **drafter: Any) -> AsyncIterator[Stack]:
    folder = letters_folder(tmp_path / "m", 5)
    served = scripted_drafter(draft, folder, **drafter)
    async with stack(folder, [scripted_target(target, folder)], [served]) as running:
        yield running


async def outputs(s: Stack, requests: int = 1, **fields: Any) -> list[Answer]:
    wanted = {"max_tokens": TOKENS, "token_ids": [1], **fields}
    return list(await asyncio.gather(*(s.generate(**wanted) for _ in range(requests))))


def transitions_p(answers: Sequence[Answer], rows: Sequence[Sequence[float]]) -> float:
    return p_value(transition_counts([a.ids for a in answers], [1] * len(answers), 5), rows)


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
async def test_sampled_chains_yield_the_targets_law(tmp_path: Path, k: int, verification: str) -> None:
    async with pair(tmp_path, MARKOV_5, MARKOV_5_DRAFT) as s:
        answers = await outputs(s, num_draft_tokens=k, verification=verification)
    assert transitions_p(answers, MARKOV_ROWS) > SUSPICIOUS
    for answer in answers:
        assert not answer.stats.fallbacks
        assert 0 < answer.stats.accepted_tokens < answer.stats.draft_tokens


@pytest.mark.scenario("B08")
@pytest.mark.parametrize("verification", ["rejection", "traversal"])
async def test_sampled_trees_without_replacement_yield_the_targets_law(tmp_path: Path, verification: str) -> None:
    """B08: order and base q travel, the conditional q of later siblings follows from them."""
    async with pair(tmp_path, MARKOV_5, MARKOV_5_DRAFT, parents=TREE) as s:
        answers = await outputs(s, num_draft_tokens=len(TREE), verification=verification)
    assert transitions_p(answers, MARKOV_ROWS) > SUSPICIOUS
    assert not answers[0].stats.fallbacks
    assert len(answers[0].stats.accepted_per_position) == 2, "no path of depth two was ever accepted"


@pytest.mark.parametrize(
    ("verification", "parents"), [("rejection", None), ("block", None), ("traversal", (0, 0, 1, 2))], ids=str
)
async def test_sparse_draft_laws_yield_the_targets_law(
    tmp_path: Path, verification: str, parents: tuple[int, ...] | None
) -> None:
    """A support of two tokens: most of the target's mass travels as a tail and one outside sample."""
    async with pair(tmp_path, MARKOV_5, MARKOV_5_DRAFT, support=2, parents=parents) as s:
        answers = await outputs(s, num_draft_tokens=4 if parents else 3, verification=verification)
    assert transitions_p(answers, MARKOV_ROWS) > SUSPICIOUS


@pytest.mark.parametrize("k", [0, 3])
async def test_a_seeded_request_yields_the_targets_law(tmp_path: Path, k: int) -> None:
    async with pair(tmp_path, MARKOV_5, MARKOV_5_DRAFT) as s:
        answer = await s.generate(token_ids=[1], max_tokens=TOKENS, seed=5, num_draft_tokens=k)
    assert transitions_p([answer], MARKOV_ROWS) > SUSPICIOUS
    assert bool(answer.stats.accepted_tokens) == bool(k)


@pytest.mark.scenario("B02")
async def test_a_deterministic_draft_is_no_sample_of_its_softmax(tmp_path: Path) -> None:
    """B02: the drafter always proposes token 1, the argmax of q; judged with its softmax the TV would be .30."""
    async with pair(tmp_path, PAIR_5, PAIR_5_DRAFT, propose=lambda context, k: [1] * k) as s:
        answers = await outputs(s, num_draft_tokens=2)
    ids = [i for a in answers for i in a.ids]
    assert token_p_value(ids, PAIR_5_P) > SUSPICIOUS
    assert transitions_p(answers, [PAIR_5_P] * 5) > SUSPICIOUS
    counted = answers[0].stats
    assert counted.exact_alpha_sum / counted.exact_alpha_count == pytest.approx(PAIR_5_P[1])


async def test_plain_decoding_yields_the_targets_law(tmp_path: Path) -> None:
    async with pair(tmp_path, MARKOV_5, MARKOV_5_DRAFT) as s:
        answers = await outputs(s, num_draft_tokens=0, verification="rejection")
    assert transitions_p(answers, MARKOV_ROWS) > SUSPICIOUS


@pytest.mark.scenario("B51")
async def test_a_drafter_that_often_fails_leaves_the_law_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B51: late, refused or garbage in turn; whether a draft comes says nothing about its tokens."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.005)
    seen = 0

    async def unsteady(request: Request, reply: Any) -> Any:
        nonlocal seen
        seen += 1
        garbage = Draft(DraftTree.chain([0, 0]), DraftKind.SAMPLED)
        troubles = (None, replace(reply, result=Refusal("FULL", "", "field")), replace(reply, result=garbage))
        return reply if seen % 4 else troubles[seen // 4 % 3]

    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, script=unsteady)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter], draft_timeout=0.03) as s:
        answers = await outputs(s, num_draft_tokens=3)
    assert transitions_p(answers, MARKOV_ROWS) > SUSPICIOUS
    assert {"late", "refused", "bad_draft"} <= set(answers[0].stats.fallbacks)
    assert answers[0].stats.accepted_tokens


@pytest.mark.scenario("B11")
@pytest.mark.parametrize("rule", [token_rule, accept_if_either_rule_would])
async def test_the_acceptance_rate_is_the_overlap_of_the_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: Rule
) -> None:
    """B11: on PAIR-5 both the counted rate and the exact alpha are sum min(p, q) = .650; more is a fault too, which the
    second rule shows."""
    monkeypatch.setitem(RULES, "rejection", rule)
    async with pair(tmp_path, PAIR_5, PAIR_5_DRAFT) as s:
        requests = 2 if rule is token_rule else 5
        answers = await outputs(s, requests, num_draft_tokens=1, verification="rejection")
        counted = s.metric("specdec_num_accepted_tokens_total") / s.metric("specdec_num_draft_tokens_total")
    accepted, drafted = (sum(getattr(a.stats, n) for a in answers) for n in ("accepted_tokens", "draft_tokens"))
    assert counted == pytest.approx(accepted / drafted)
    likely = stats.binomtest(accepted, drafted, ALPHA_PAIR_5).pvalue
    law_p = token_p_value([i for a in answers for i in a.ids], PAIR_5_P)
    assert (min(likely, law_p) > SUSPICIOUS) == (rule is token_rule)
    alpha = sum(a.stats.exact_alpha_sum for a in answers) / sum(a.stats.exact_alpha_count for a in answers)
    assert alpha == pytest.approx(ALPHA_PAIR_5, abs=1e-3)


@pytest.mark.scenario("B12")
@pytest.mark.parametrize("right", [0, 1, 2, 3])
async def test_what_replaces_a_rejected_token_follows_the_row_that_rejected_it(tmp_path: Path, right: int) -> None:
    """B12: the drafter is the target for `right` tokens, then wrong; the recovered tokens have that row's residual."""
    folder = letters_folder(tmp_path / "m", 5)
    drafter = HalfRight(MARKOV_5, TextCodec.load(str(folder)).tokenizer_hash, "draft", right=right)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answers = await outputs(s, num_draft_tokens=4, verification="rejection")
    counts = np.zeros((5, 5), dtype=np.int64)
    for answer in answers:
        last = 1
        for token in (token for chunk in answer.chunks for token in chunk.tokens):
            if token.origin == TOKEN_ORIGIN_RECOVERED:
                counts[last, token.id] += 1
            last = token.id
    p, q = np.array(MARKOV_ROWS), np.array(MARKOV_ROWS)[:, ::-1]
    residual = np.maximum(p - q, 0)
    residual /= residual.sum(axis=1, keepdims=True)
    assert counts.sum() > 50
    assert p_value(counts, residual.tolist()) > SUSPICIOUS
    assert p_value(counts, MARKOV_ROWS) < SUSPICIOUS, "the test cannot tell a residual from the plain law"
    assert transitions_p(answers, MARKOV_ROWS) > SUSPICIOUS


def judge_by_the_next_row(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """B12's fault: each position is judged by its neighbour's law."""
    laws = (*verification.laws[1:], *verification.laws[:1])
    return token_rule(draft, replace(verification, laws=laws), uniforms)


def recover_from_the_whole_law(draft: Draft, verification: Verification, uniforms: Floats) -> Acceptance:
    """B03's fault: after a rejection the plain target law, not the residual."""
    found = token_rule(draft, verification, uniforms)
    if found.bonus:
        return found
    law = verification.laws[len(found.nodes)]
    return replace(found, token=int(law.ids[np.searchsorted(np.cumsum(law.p), uniforms[0] * law.p.sum())]))


@pytest.mark.scenario("B03")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rejection", judge_by_the_next_row),
        ("rejection", recover_from_the_whole_law),
        ("block", formula(stops_at_the_first_failure)),
        ("block", formula(pi_for_h)),
    ],
)
async def test_a_wrong_rule_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Rule
) -> None:
    """The negative control of this file; B03 among the faults."""
    monkeypatch.setitem(RULES, name, wrong)
    async with pair(tmp_path, MARKOV_5, MARKOV_5_DRAFT) as s:
        answers = await outputs(s, 1 if name == "rejection" else 4, num_draft_tokens=3, verification=name)
    assert transitions_p(answers, MARKOV_ROWS) < SUSPICIOUS
