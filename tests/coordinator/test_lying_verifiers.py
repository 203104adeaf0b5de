"""A verifier that answers what cannot be: refused, set aside, asked again elsewhere; in the end a typed error, for that
request only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator import replica
from coordinator.verifying import ATTEMPTS
from specdec.core.errors import ReplicaFault, Unavailable
from specdec.core.sampling import SamplingParams
from specdec.core.verification import TargetLaw, Verification, VerifyForm
from specdec.edge.messages import Refusal, StaleContext
from tests.fakes.scripted import Request
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, letters_folder
from tests.reference import reference_tokens


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.02)


def law(change: Callable[[TargetLaw], TargetLaw]) -> Callable[[Verification], Verification]:
    return lambda v: (
        replace(v, laws=tuple(change(found) for found in v.laws)) if v.laws else replace(v, drawn=v.drawn + 9)
    )


LIES: dict[str, Callable[[Verification], Verification]] = {
    "empty row": lambda v: replace(v, drawn=v.drawn[:0]),
    "a node short": lambda v: replace(v, drawn=v.drawn[:-1]),
    "id beyond": lambda v: replace(v, drawn=np.full_like(v.drawn, 5)),
    "NaN": law(lambda found: replace(found, p=np.full_like(found.p, np.nan))),
    "NaN tail": law(lambda found: replace(found, tail=float("nan"))),
    "mass 1.2": law(lambda found: replace(found, p=found.p * np.float32(1.2))),
    "negative": law(lambda found: replace(found, p=-found.p)),
    "law short": law(lambda found: replace(found, p=found.p[:-1])),
    "no law": lambda v: replace(v, laws=(), form=VerifyForm.Y),
}


@pytest.mark.scenario("B25", "B135")
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_verification_that_cannot_be_is_refused_and_asked_for_again(
    tmp_path: Path, lie: Callable[[Verification], Verification], caplog: pytest.LogCaptureFixture
) -> None:
    """B25, B135: once for one of three requests; its verifier is set aside, its law stays, the others see nothing."""
    folder = letters_folder(tmp_path / "m", 5)
    lied_to: list[str] = []

    async def script(request: Request, reply: Any) -> Any:
        speaker = next(t for t in targets if t.requests and t.requests[-1][1] is request)
        if request.cycle >= 3 and not lied_to and request.tree.num_draft_tokens:
            lied_to.append(speaker.requests[-1][0])
            return replace(reply, result=lie(reply.result))
        return reply

    targets = [scripted_target(MARKOV_5, folder, replica_id=str(i), script=script) for i in range(2)]
    async with stack(folder, targets, [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        answers = await asyncio.gather(
            *(s.generate(token_ids=[1], max_tokens=30, num_draft_tokens=3, verification="rejection") for _ in range(3))
        )
        assert s.metric("specdec_quarantines_total", role="target", reason="REPLICA_FAULT") == 1
        assert s.metric("specdec_reopens_total", role="target") == 1
    assert "set aside" in caplog.text
    for answer in answers:
        assert len(answer.ids) == 30
        assert all(0 <= i < 5 for i in answer.ids)
    assert lied_to[0] in {answer.started.session_id for answer in answers}


@pytest.mark.scenario("B135")
@pytest.mark.parametrize("trouble", ["NaN", "stale cycle", "stale for ever", "refusal"])
async def test_a_verifier_that_always_lies_costs_that_request_a_typed_error(tmp_path: Path, trouble: str) -> None:
    """B135: bounded attempts, then INTERNAL with a reason; the request beside it ends well."""
    folder = letters_folder(tmp_path / "m", 5)

    async def script(request: Request, reply: Any) -> Any:
        session = target.requests[-1][0]
        if request.open is None or request.open.seed != 13:
            if session not in victims:
                return reply
        else:
            victims.add(session)
        return {
            "NaN": replace(reply, result=LIES["empty row"](reply.result)),
            "stale cycle": replace(reply, cycle=reply.cycle + 1),
            "stale for ever": replace(reply, result=StaleContext(7)),
            "refusal": replace(reply, result=Refusal("FORWARD_FAILED", "the model raised")),
        }[trouble]

    victims: set[str] = set()
    target = scripted_target(MARKOV_5, folder, script=script)
    async with stack(folder, [target], verify_timeout=0.4 if trouble == "stale cycle" else 20.0) as s:
        well = asyncio.create_task(s.generate(token_ids=[1], seed=3, max_tokens=300))
        with pytest.raises(Unavailable if trouble == "stale cycle" else ReplicaFault) as error:
            await s.generate(token_ids=[1], seed=13, max_tokens=20)
        reasons = {"refusal": "FORWARD_FAILED", "stale cycle": "NO_TARGET"}
        assert error.value.reason == reasons.get(trouble, "REPLICA_FAULT")
        assert (await well).ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 300)
        assert s.active == 0
    (victim,) = victims
    assert len(target.sent(victim)) == ATTEMPTS
