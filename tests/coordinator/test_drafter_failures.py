"""Whatever drafters do, the client sees nothing but speed: output stays the target's own, waits are bounded, and
speculation comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import drafting, replica
from specdec.core.draft import Draft
from specdec.core.sampling import SamplingParams
from specdec.core.tree import DraftTree
from specdec.edge.messages import Load, Refusal, StaleContext
from tests.fakes.replicas import ScriptedDrafter
from tests.fakes.scripted import Request, honest, silent
from tests.fakes.stack import Answer, Stack, scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, letters_folder
from tests.reference import reference_tokens

SEEDED = {"token_ids": [1], "seed": 3, "num_draft_tokens": 3}


def is_the_targets_own(answer: Answer) -> bool:
    return answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, len(answer.ids))


async def speculates(s: Stack) -> None:
    """Soon: a drafter is back."""
    await until(lambda: bool(s.drafters.ready()))
    answer = await s.generate(**SEEDED, max_tokens=40)
    assert answer.stats.accepted_tokens > 0
    assert not answer.stats.fallbacks


async def fail(request: Request, reply: Any) -> Any:
    raise RuntimeError("the drafter broke")


async def babble(request: Request, reply: Any) -> Any:
    return replace(reply, result=Draft(DraftTree.chain([4_000_000_000])))


async def mumble(request: Request, reply: Any) -> Any:
    """Answers that belong to no cycle that is waited for."""
    return replace(reply, cycle=reply.cycle - 1)


async def deny(request: Request, reply: Any) -> Any:
    return replace(reply, result=StaleContext(0))


async def refuse(request: Request, reply: Any) -> Any:
    return replace(reply, result=Refusal("BROKEN", "no more"))


@pytest.mark.scenario("B97")
@pytest.mark.parametrize(
    ("script", "cause", "asked"),
    [
        (silent, "late", drafting.LATE_IN_A_ROW),
        (mumble, "late", drafting.LATE_IN_A_ROW),
        (fail, "lost", 1),
        (babble, "bad_draft", 1),
        (deny, "lost", 1),
        (refuse, "refused", 1),
    ],
)
async def test_a_drafter_that_fails_is_asked_no_more_until_it_may_be_well(
    tmp_path: Path, script: Callable[..., Any], cause: str, asked: int
) -> None:
    """B97: hanging, answering for other cycles, dying, garbage, stale for ever. The breaker opens, and closes again."""
    folder = letters_folder(tmp_path / "m", 5)
    timeout = 0.1 if cause == "late" else 10.0
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, script=script)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter], draft_timeout=timeout) as s:
        answer = await s.generate(**SEEDED, max_tokens=50)
        assert is_the_targets_own(answer)
        assert answer.stats.fallbacks[cause] == asked >= len(drafter.requests)
        assert answer.stats.fallbacks["no_drafter"] >= answer.stats.cycles - asked - 1, "the last may want no draft"
        assert answer.stats.draft_seconds < 10 * asked * 0.1
        await until(lambda: not drafter.streams)
        drafter.script = honest
        await speculates(s)
        assert s.metric("specdec_quarantines_total", role="draft") == 1


@pytest.mark.scenario("B97")
async def test_all_drafters_die_and_come_back_in_mid_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B97: killed while a long request runs, and started again: the same stream speculates again."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.02)
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter], patience=0.5) as s:
        running = asyncio.create_task(s.generate(**SEEDED, max_tokens=1500))
        await until(lambda: len(drafter.requests) > 20)
        await s.kill(drafter)
        before = len(drafter.requests)
        await s.revive(drafter)
        await until(lambda: len(drafter.requests) > before + 20)
        answer = await running
        assert s.metric("specdec_reopens_total", role="draft") >= 1
    assert is_the_targets_own(answer)
    assert answer.stats.fallbacks["lost"] + answer.stats.fallbacks["no_drafter"] > 0
    session = answer.started.session_id
    again = [request for request in drafter.sent(session)[before:] if request.open is not None]
    assert [request.offset for request in again] == [0], "a new stream begins with the whole context"


@pytest.mark.scenario("B97")
async def test_drafters_that_are_down_at_the_start_are_found_when_they_come(tmp_path: Path) -> None:
    """B97: nobody listens at first; plain decoding, then speculation."""
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        await s.kill(drafter)
        await until(lambda: not s.drafters.ready())
        answer = await s.generate(**SEEDED, max_tokens=30)
        assert is_the_targets_own(answer)
        assert set(answer.stats.fallbacks) == {"no_drafter"}
        assert (await s.client.info()).ready_drafters == 0
        await s.revive(drafter)
        await speculates(s)
        assert (await s.client.info()).ready_drafters == 1


async def test_a_drafter_that_lost_context_is_told_the_rest(tmp_path: Path) -> None:
    """ "Stale, I hold n" is answered in band, from n, within the same cycle and its budget."""
    folder = letters_folder(tmp_path / "m", 5)

    async def forget(request: Request, reply: Any) -> Any:
        if request.cycle == 4 and not isinstance(reply.result, StaleContext):
            drafter.evict(3)
        return reply

    drafter = scripted_drafter(MARKOV_5, folder, script=forget)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(**SEEDED, max_tokens=60)
    assert is_the_targets_own(answer)
    assert not answer.stats.fallbacks
    assert answer.stats.accepted_tokens == answer.stats.draft_tokens, "the same law and noise: right with the context"
    fifth = [request for request in drafter.sent(answer.started.session_id) if request.cycle == 5]
    assert [request.offset for request in fifth] == [13, 3]


async def test_a_late_drafter_keeps_its_stream_and_its_context(tmp_path: Path) -> None:
    """One late reply is dropped when it comes; the next draft goes on where the drafter is."""
    folder = letters_folder(tmp_path / "m", 5)
    release = asyncio.Event()

    async def tardy(request: Request, reply: Any) -> Any:
        if request.cycle == 3:
            await release.wait()
        elif request.cycle == 5:
            release.set()
        return reply

    async def hurry(request: Request, reply: Any) -> Any:
        if request.cycle == 4:
            release.set()
        return reply

    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, script=tardy)
    target = scripted_target(MARKOV_5, folder, script=hurry)
    async with stack(folder, [target], [drafter], draft_timeout=0.3) as s:
        answer = await s.generate(**SEEDED, max_tokens=60)
    assert is_the_targets_own(answer)
    assert answer.stats.fallbacks == {"late": 2}
    assert drafter.streams_opened == 1
    assert [request.offset for request in drafter.sent(answer.started.session_id)].count(0) == 1


@pytest.mark.scenario("B71", "B72")
async def test_a_context_beyond_a_drafters_window_is_not_for_it(tmp_path: Path) -> None:
    """B71, B72: the coordinator decides by what the replica says of itself; nothing waits for an answer."""
    folder = letters_folder(tmp_path / "m", 5)
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, max_context=20)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(**SEEDED, max_tokens=40)
    assert is_the_targets_own(answer)
    assert answer.stats.fallbacks["draft_context"] > 3
    requests = drafter.sent(answer.started.session_id)
    assert requests
    assert all(r.offset + len(r.token_ids) + r.num_draft_tokens <= 20 for r in requests)


async def test_a_draining_drafter_hands_its_sessions_to_another(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)

    async def drain(request: Request, reply: Any) -> Any:
        if request.cycle == 4:
            drafters[0].load = drafters[1].load = Load()
            leaving = next(d for d in drafters if d.streams)
            leaving.load = Load(draining=True)
            return replace(reply, load=leaving.load)
        return reply

    drafters: list[ScriptedDrafter] = [
        scripted_drafter(MARKOV_5_DRAFT, folder, script=drain, replica_id=str(i)) for i in range(2)
    ]
    async with stack(folder, [scripted_target(MARKOV_5, folder)], drafters) as s:
        answer = await s.generate(**SEEDED, max_tokens=40)
        assert s.metric("specdec_reopens_total", role="draft", reason="DRAINING") == 1
        assert s.metric("specdec_quarantines_total") == 0
    assert is_the_targets_own(answer)
    assert not answer.stats.fallbacks
    assert all(drafter.requests for drafter in drafters)


async def test_what_only_one_request_cannot_have_drafted_is_held_against_no_drafter(tmp_path: Path) -> None:
    """A refusal that names the caller's field, or the want of room, sets nobody aside."""
    folder = letters_folder(tmp_path / "m", 5)
    refusals = [Refusal("EMPTY_LAW", "", "logit_bias"), Refusal("OVERLOADED", "full")]

    async def picky(request: Request, reply: Any) -> Any:
        return replace(reply, result=refusals[request.cycle % 2]) if request.cycle < 5 else reply

    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, script=picky)
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        answer = await s.generate(**SEEDED, max_tokens=40)
        assert s.metric("specdec_quarantines_total") == 0
    assert is_the_targets_own(answer)
    assert answer.stats.fallbacks == {"refused": 4}
    assert drafter.streams_opened == 1
