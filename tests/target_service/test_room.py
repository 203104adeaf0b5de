"""The engine's memory: who gets it, who loses it, and what is found again. Outputs never change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec.core.sampling import SamplingParams
from specdec.core.verification import Verification
from specdec.edge.messages import OpenSession, Refusal, VerifyRequest
from specdec.lm.network import BLOCK
from target_service.engine import Engine, ForwardReport
from target_service.session import TargetSession, VerifyJob, VerifyResult
from tests.target_service.conftest import VOCAB, MakeEngine
from tests.target_service.driver import GREEDY, Turn, bushes, generate, guesses, ids, long_pauses, run
from tests.target_service.test_engine import SEEDED, prompt
from tests.tiny_models import FAMILIES


def ask(engine: Engine, session: TargetSession, context: list[int]) -> VerifyResult:
    """A session's next plain verification, in one step."""
    [(_, result)] = engine.step([VerifyJob(session, VerifyRequest(0, 0, ids(context)))])
    return result


def opened(engine: Engine, context: list[int], session_id: str = "s") -> TargetSession:
    session = engine.open(OpenSession(session_id, GREEDY, 0, 1))
    assert isinstance(ask(engine, session, context).result, Verification)
    return session


@pytest.mark.scenario("B22")
@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (12, 2 * BLOCK),  # all of it: the second block was filled by draft tokens that came true
        (8, 2 * BLOCK),  # cut inside the last accepted block: the eighth token was EOS
        (3, BLOCK),
    ],
)
@pytest.mark.parametrize("session_id", ["chat", "another"])
def test_a_second_turn_computes_only_what_no_full_block_holds(
    make_engine: MakeEngine, kept: int, found: int, session_id: str
) -> None:
    """Turn 1 ends by EOS in the middle of an accepted block; turn 2 has the text up to it and a new user turn."""
    truth = prompt(60) + generate(make_engine(), prompt(60), 30)
    reports: list[ForwardReport] = []
    engine = make_engine(report=reports.append)
    first = Turn(prompt(60), 12, guesses(truth, 5, 0, VOCAB), session_id="chat")
    run(engine, [first])
    context = first.context[: 60 + kept] + prompt(9, 5)
    del reports[:]
    second = Turn(context, 4, session_id=session_id)
    run(engine, [second])
    assert second.results[0].computed_tokens == len(context) - found
    assert (reports[0].kv_hits, reports[0].prefix_hits) == (0, found)
    assert [report.prefix_hits for report in reports[1:]] == [0] * 3
    assert second.output == generate(make_engine(), context, 4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_outputs_with_a_shared_beginning_are_those_without(make_engine: MakeEngine, family: str, params: Any) -> None:
    """Together and one after another, with chains and trees, and no two ends alike."""
    prompts = [prompt(2 * BLOCK + 3, 1) + prompt(1 + 5 * i, 20 + i) for i in range(4)]
    alone = [generate(make_engine(family), p, 14, params=params, seed=i) for i, p in enumerate(prompts)]
    truths = [p + out for p, out in zip(prompts, alone, strict=True)]
    drafts = [bushes(t, 3, VOCAB) if i % 2 else guesses(t, 3, 1, VOCAB) for i, t in enumerate(truths)]
    engine = make_engine(family, token_budget=40)
    for starts in ([0, 0, 0, 0], [0, 2, 30, 31]):
        turns = [
            Turn(p, 14, draft, params, i, start)
            for i, (p, draft, start) in enumerate(zip(prompts, drafts, starts, strict=True))
        ]
        run(engine, turns)
        assert [turn.output for turn in turns] == alone
    # the second time all find the beginning, and themselves
    assert [turn.results[0].computed_tokens < BLOCK + 20 for turn in turns] == [True] * 4


def test_a_context_that_is_cached_whole_still_gives_its_root(make_engine: MakeEngine) -> None:
    engine = make_engine()
    context = prompt(2 * BLOCK)
    first, second = opened(engine, context), engine.open(OpenSession("t", GREEDY, 0, 1))
    again = ask(engine, second, context)
    assert again.computed_tokens == BLOCK, "the last token's row is wanted, and its block with it"
    assert isinstance(again.result, Verification)
    assert again.result.drawn.tolist() == generate(make_engine(), context, 1)
    assert (first.sequence.blocks == second.sequence.blocks).all(), "computed twice, held once"
    assert engine.kv_total - engine.kv_free == 2 * BLOCK


def test_what_is_only_cached_goes_first_then_idle_sessions_the_least_recently_used_first(
    make_engine: MakeEngine,
) -> None:
    reports: list[ForwardReport] = []
    engine = make_engine(kv_tokens=6 * BLOCK, report=reports.append, clock=long_pauses())
    sessions = [opened(engine, prompt(BLOCK + 8, i), str(i)) for i in range(3)]
    engine.close(sessions[1])

    def held() -> list[int]:
        return [s.sequence.num_context for s in sessions]

    newcomer = opened(engine, prompt(BLOCK + 30, 7), "new")
    assert held() == [BLOCK + 8, 0, BLOCK + 8] and reports[-1].evictions == 1
    result = ask(engine, newcomer, prompt(BLOCK + 40, 7))
    assert held() == [0, 0, BLOCK + 8] and result.computed_tokens == 10
    assert reports[-1].evictions == 0, "a partly filled block was enough"
    again = ask(engine, sessions[0], prompt(BLOCK + 8, 0))
    assert isinstance(again.result, Verification), "a session that lost its KV has it again, unseen"
    assert again.computed_tokens == 8
    assert again.result.drawn.tolist() == generate(make_engine(), prompt(BLOCK + 8, 0), 1)
    assert held() == [BLOCK + 8, 0, 0], "and so it goes on"


def test_sessions_that_drive_each_other_out_get_what_they_would_get_alone(make_engine: MakeEngine) -> None:
    """Room for hardly more than one of four at a time: each is preempted again and again, none is ever refused."""
    prompts = [prompt(BLOCK + 20 + 3 * i, i) for i in range(4)]
    alone = [generate(make_engine(), p, 12) for p in prompts]
    reports: list[ForwardReport] = []
    engine = make_engine(kv_tokens=4 * BLOCK, token_budget=24, report=reports.append, clock=long_pauses())
    turns = [
        Turn(p, 12, guesses(p + out, 2, 1, VOCAB), session_id=str(i))
        for i, (p, out) in enumerate(zip(prompts, alone, strict=True))
    ]
    run(engine, turns)
    assert [turn.output for turn in turns] == alone
    assert sum(report.evictions for report in reports) > 0, "nobody was driven out"
    assert engine.kv_free == engine.kv_total


def test_a_full_pool_with_a_shared_tail_goes_on(make_engine: MakeEngine) -> None:
    """A copy needs a block more than there is, until the other holder lets go of it."""
    engine = make_engine(kv_tokens=3 * BLOCK, token_budget=256, clock=long_pauses())
    context = prompt(2 * BLOCK)
    idle, second = opened(engine, context, "idle"), opened(engine, context, "second")
    assert (idle.sequence.blocks == second.sequence.blocks).all()
    branch = context[: BLOCK + 5] + prompt(2 * BLOCK - 5, 3)
    result = ask(engine, second, branch)
    assert isinstance(result.result, Verification)
    assert result.result.drawn.tolist() == generate(make_engine(), branch, 1)


@pytest.mark.scenario("B132")
def test_nan_is_not_found_again(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a poisoned session published is withdrawn: the next one computes it afresh."""
    engine = make_engine(token_budget=256)
    context = prompt(2 * BLOCK + 5)
    session = engine.open(OpenSession("s", GREEDY, 0, 1))
    compute = engine._runner.compute

    def poisoned(segments: Any, layers: Any) -> Any:
        return [replace(part, logits=torch.full_like(part.logits, torch.nan)) for part in compute(segments, layers)]

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "compute", poisoned)
        refused = ask(engine, session, context).result
    assert isinstance(refused, Refusal) and refused.reason == "NAN_LOGITS"
    assert engine.kv_free == engine.kv_total
    result = ask(engine, session, context)
    assert isinstance(result.result, Verification) and result.computed_tokens == len(context)


def test_a_failed_forward_leaves_nothing_to_be_found(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(token_budget=2 * BLOCK)
    context = prompt(3 * BLOCK)
    session = engine.open(OpenSession("s", GREEDY, 0, 1))
    job = VerifyJob(session, VerifyRequest(0, 0, ids(context)))
    assert engine.step([job]) == []
    assert session.sequence.num_context == 2 * BLOCK

    def broken(segments: Any, layers: Any) -> Any:
        raise RuntimeError("the device fell off")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "compute", broken)
        [(_, failed)] = engine.step([job])
    assert isinstance(failed.result, Refusal) and engine.kv_free == engine.kv_total
    other = Turn(context, 1, params=SamplingParams(temperature=0.0), session_id="other")
    run(engine, [other])
    assert other.results[0].computed_tokens == len(context)
