"""Verifiers die, drain, lie and fill up. Greedy and seeded output is what it would have been; what cannot go on ends
with a typed error, for that request only."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import replica, verifying
from coordinator.verifying import ATTEMPTS
from specdec.core.errors import InvalidArgument, ReplicaFault, ResourceExhausted, Unavailable
from specdec.core.sampling import SamplingParams
from specdec.core.verification import Verification
from specdec.edge.messages import Load, Refusal
from tests.coordinator.chi_square import SUSPICIOUS, p_value, transition_counts
from tests.fakes.replicas import ScriptedTarget
from tests.fakes.scripted import Request, honest, silent
from tests.fakes.stack import Answer, scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, MARKOV_ROWS, letters_folder
from tests.reference import reference_tokens

SEEDED = {"token_ids": [1], "seed": 3, "num_draft_tokens": 3}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that failed are looked at again soon, and the coordinator's random bits are always the same."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr("coordinator.service.secrets.randbits", random.Random(4).getrandbits)


def is_the_targets_own(answer: Answer) -> bool:
    return answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, len(answer.ids))


def pool_of_two(folder: Path, **fields: Any) -> list[ScriptedTarget]:
    return [scripted_target(MARKOV_5, folder, replica_id=str(i), **fields) for i in range(2)]


@pytest.mark.scenario("B95", "B99")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_session_moves_to_another_verifier_when_its_own_dies(tmp_path: Path, temperature: float) -> None:
    """B95, B99: the other one gets the whole context from offset 0, then goes on from there; chunks have no gap."""
    folder = letters_folder(tmp_path / "m", 5)
    killed: asyncio.Future[ScriptedTarget] = asyncio.get_running_loop().create_future()

    async def die(request: Request, reply: Any) -> Any:
        if request.cycle == 5 and not killed.done():
            killed.set_result(next(t for t in targets if t.streams))
            await silent(request, reply)
        return reply

    targets = pool_of_two(folder, script=die)
    fields = {**SEEDED, "temperature": temperature, "repetition_penalty": 1.2, "max_tokens": 40}
    async with stack(folder, targets, [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        running = asyncio.create_task(s.generate(**fields))
        dead = await killed
        await s.kill(dead)
        answer = await running
        assert s.metric("specdec_reopens_total", role="target", reason="REPLICA_LOST") == 1
    params = SamplingParams(temperature=temperature, repetition_penalty=1.2)
    assert answer.ids == reference_tokens(MARKOV_5.logits, [1], params, 3, 40)
    (other,) = [t for t in targets if t is not dead]
    first, second, *_ = other.sent(answer.started.session_id)
    known = [1, *answer.ids]
    assert (first.offset, first.cycle, first.open is not None) == (0, 5, True)
    assert first.token_ids.tolist() == known[: len(first.token_ids)]
    assert (second.offset, second.open) == (len(first.token_ids), None)


@pytest.mark.scenario("B95", "B96")
async def test_unseeded_output_is_lawful_across_many_failovers(tmp_path: Path) -> None:
    """B95, B96: a verification in ten is lost with its stream; the same tree is judged by the other verifier."""
    folder = letters_folder(tmp_path / "m", 5)
    chance = random.Random(8)

    async def frail(request: Request, reply: Any) -> Any:
        if chance.random() < 0.1:
            raise RuntimeError("the verifier broke")
        return reply

    targets = pool_of_two(folder, script=frail)
    async with stack(folder, targets, [scripted_drafter(MARKOV_5_DRAFT, folder)]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=500, num_draft_tokens=3)
        assert s.metric("specdec_reopens_total", role="target") > 10
    assert p_value(transition_counts([answer.ids], [1], 5), MARKOV_ROWS) > SUSPICIOUS
    assert not answer.stats.fallbacks


async def test_a_verifier_that_froze_is_left_by_its_own_pace_where_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection lives, so only silence tells: not the whole verify_timeout is waited for."""
    monkeypatch.setattr(verifying, "GRACE", 0.5)
    folder = letters_folder(tmp_path / "m", 5)
    frozen: list[ScriptedTarget] = []

    async def freeze(request: Request, reply: Any) -> Any:
        if request.cycle == 8 and not frozen:
            frozen.append(next(t for t in targets if t.streams))
            await silent(request, reply)
        return reply

    targets = pool_of_two(folder, script=freeze)
    async with stack(folder, targets, verify_timeout=1000.0) as s, asyncio.timeout(30):
        answer = await s.generate(**SEEDED, max_tokens=40)
        assert s.metric("specdec_reopens_total", role="target", reason="REPLICA_LATE") == 1
    assert is_the_targets_own(answer) and frozen


@pytest.mark.parametrize(("slow", "others"), [(8, 0), (1, 1)])
async def test_the_only_verifier_and_the_first_verification_have_all_the_time_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int, others: int
) -> None:
    """slow: the cycle that takes long; the first computes a context."""
    monkeypatch.setattr(verifying, "GRACE", 0.05)
    folder = letters_folder(tmp_path / "m", 5)

    async def dawdle(request: Request, reply: Any) -> Any:
        if request.cycle == slow:
            await asyncio.sleep(0.5)  # longer than what the pace of the others would allow
        return reply

    async with stack(folder, pool_of_two(folder, script=dawdle)[: 1 + others]) as s:
        answer = await s.generate(**SEEDED, max_tokens=40)
        assert s.metric("specdec_reopens_total", role="target") == 0
    assert is_the_targets_own(answer)


async def test_without_another_verifier_the_request_ends_in_time(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)
    target = scripted_target(MARKOV_5, folder)
    async with stack(folder, [target], failover_timeout=0.3) as s:
        running = asyncio.create_task(s.generate(**SEEDED, max_tokens=4000))
        await until(lambda: len(target.requests) > 5)
        await s.kill(target)
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable) as error:
                await running
        assert error.value.reason == "NO_TARGET"
        assert error.value.retry_after > 0
        with pytest.raises(Unavailable, match="no target replica is ready"):
            await s.generate(**SEEDED, max_tokens=4)
        assert s.active == 0


async def test_many_sessions_that_lose_one_verifier_are_one_incident(tmp_path: Path) -> None:
    """Sixteen reports of the same death must not add up to sixteen doublings of the pause."""
    folder = letters_folder(tmp_path / "m", 5)
    target = scripted_target(MARKOV_5, folder)
    async with stack(folder, [target], [scripted_drafter(MARKOV_5_DRAFT, folder)], failover_timeout=20.0) as s:
        running = [asyncio.create_task(s.generate(**SEEDED, max_tokens=60)) for _ in range(16)]
        await until(lambda: len(target.streams) == 16)
        await s.kill(target)
        await s.revive(target)
        answers = await asyncio.gather(*running)
        assert s.metric("specdec_quarantines_total", role="target") < 8
    assert all(is_the_targets_own(answer) for answer in answers)


@pytest.mark.scenario("B81", "B96")
async def test_steps_that_fail_at_random_hurt_no_request_for_long(tmp_path: Path) -> None:
    """B81, B96: a tenth of the verifications of 200 requests is refused; each ends once, well or with a typed error."""
    folder = letters_folder(tmp_path / "m", 5)
    chance = random.Random(6)

    async def flaky(request: Request, reply: Any) -> Any:
        return replace(reply, result=Refusal("FORWARD_FAILED", "")) if chance.random() < 0.1 else reply

    target = scripted_target(MARKOV_5, folder, script=flaky)
    async with stack(folder, [target], failover_timeout=20.0) as s:
        requests = (s.generate(**SEEDED, max_tokens=4) for _ in range(200))
        answers = await asyncio.gather(*requests, return_exceptions=True)
        target.script = honest
        assert is_the_targets_own(await s.generate(**SEEDED, max_tokens=20))
        assert s.active == 0
        await until(lambda: not target.streams)
    failed = [answer for answer in answers if not isinstance(answer, Answer)]
    assert all(isinstance(error, ReplicaFault) and error.reason == "FORWARD_FAILED" for error in failed)
    assert len(failed) < 5
    assert all(len(a.ids) == 4 and is_the_targets_own(a) for a in answers if isinstance(a, Answer))


async def test_what_the_caller_asked_for_wrongly_is_the_callers_error(tmp_path: Path) -> None:
    """A refusal that names a field goes through as INVALID_ARGUMENT, at once, and no verifier is blamed."""
    folder = letters_folder(tmp_path / "m", 5)

    async def empty(request: Request, reply: Any) -> Any:
        return replace(reply, result=Refusal("EMPTY_LAW", "leave a token possible", "logit_bias"))

    target = scripted_target(MARKOV_5, folder, script=empty)
    async with stack(folder, [target]) as s:
        with pytest.raises(InvalidArgument) as error:
            await s.generate(**SEEDED, max_tokens=20)
        assert error.value.field == "logit_bias"
        assert s.metric("specdec_quarantines_total") == 0
    assert len(target.requests) == 1


def drains(targets: list[ScriptedTarget]) -> Callable[..., Any]:
    async def drain(request: Request, reply: Any) -> Any:
        if request.cycle == 4:
            leaving = next(t for t in targets if t.streams)
            leaving.load = Load(draining=True)
            return replace(reply, load=leaving.load)
        return reply

    return drain


@pytest.mark.parametrize("others", [0, 1])
async def test_a_draining_verifier_hands_over_as_soon_as_another_can_take_over(tmp_path: Path, others: int) -> None:
    """Without another it serves on: a pause is all that draining may cost."""
    folder = letters_folder(tmp_path / "m", 5)
    targets = pool_of_two(folder)[: 1 + others]
    for target in targets:
        target.script = drains(targets)
    async with stack(folder, targets, [scripted_drafter(MARKOV_5_DRAFT, folder)], failover_timeout=0.5) as s:
        answer = await s.generate(**SEEDED, max_tokens=60)
        assert s.metric("specdec_reopens_total", role="target", reason="DRAINING") == others
        assert s.metric("specdec_quarantines_total") == 0
    assert is_the_targets_own(answer)
    assert [target.streams_opened for target in targets] == [1] * (1 + others)


async def test_a_verifier_that_lost_context_is_told_the_rest(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", 5)

    async def forget(request: Request, reply: Any) -> Any:
        if request.cycle == 4 and isinstance(reply.result, Verification):
            target.evict(2)
        return reply

    target = scripted_target(MARKOV_5, folder, script=forget)
    async with stack(folder, [target]) as s:
        answer = await s.generate(**SEEDED, max_tokens=20)
    assert is_the_targets_own(answer)
    fifth = [request for request in target.sent(answer.started.session_id) if request.cycle == 5]
    assert [request.offset for request in fifth] == [4, 2]
    assert target.streams_opened == 1


def full(target: ScriptedTarget, how: str, times: int) -> Callable[..., Any]:
    async def script(request: Request, reply: Any) -> Any:
        nonlocal times
        times -= 1
        if times < 0:
            return reply
        if how == "status":
            raise ResourceExhausted("no room for a session")
        return replace(reply, result=Refusal("OVERLOADED", "no room"))

    return script


@pytest.mark.parametrize("how", ["status", "refusal"])
@pytest.mark.parametrize("times", [2, 99])
async def test_a_full_verifier_is_sound_and_tried_again(tmp_path: Path, how: str, times: int) -> None:
    """Full for a moment: a pause. Full for good: RESOURCE_EXHAUSTED with a time to come back, nobody set aside."""
    folder = letters_folder(tmp_path / "m", 5)
    target = scripted_target(MARKOV_5, folder)
    target.script = full(target, how, times)
    async with stack(folder, [target]) as s:
        if times < ATTEMPTS:
            assert is_the_targets_own(await s.generate(**SEEDED, max_tokens=20))
        else:
            with pytest.raises(ResourceExhausted) as error:
                await s.generate(**SEEDED, max_tokens=20)
            assert error.value.retry_after > 0
        assert s.metric("specdec_quarantines_total") == 0
