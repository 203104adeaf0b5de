"""What the planner makes of what replicas say of themselves, over real gRPC."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec.core.planner import START
from specdec.core.step_time import StepTimeTable
from tests.coordinator.test_accounting import COUNTER, SIZE, Propose, counting, liar, oracle
from tests.fakes.stack import scripted_drafter, scripted_target, stack
from tests.fakes.tables import letters_folder


def said_to_take(seconds: float) -> Any:
    """By a replica's own account, which is what the planner goes by: beside that no machine's pace matters."""

    async def script(request: Any, reply: Any) -> Any:
        return replace(reply, timing=replace(reply.timing, compute_us=int(1e6 * seconds)))

    return script


@pytest.mark.scenario("B125")
async def test_what_one_request_taught_is_where_the_next_begins_and_no_more(tmp_path: Path) -> None:
    """B125: adaptive state is kept by a rule that is written down (architecture.md): each request has a planner of its
    own, which begins with what the last one of its kind handed on. A liar makes the first request give up drafting; the
    second is careful, gives the same output, and drafts again once it has seen that it pays."""
    chosen: list[Propose] = [liar]
    paces = said_to_take(0.5), said_to_take(0.1)
    async with counting(tmp_path, lambda context, k: chosen[-1](context, k), *paces) as (s, drafter):
        first = await s.generate(token_ids=[1], max_tokens=60, temperature=0.0)
        chosen.append(oracle)
        second = await s.generate(token_ids=[1], max_tokens=200, temperature=0.0)
    assert (first.ids, second.ids) == (oracle([1], 60), oracle([1], 200))
    k_first, k_second = (
        [request.num_draft_tokens for request in drafter.sent(answer.started.session_id)] for answer in (first, second)
    )
    assert k_first[0] == START > k_second[0]
    assert len(k_first) < first.stats.cycles - 10, "most of its cycles were plain"
    assert second.stats.accepted_tokens > 30


async def test_a_verifiers_own_step_times_shape_the_first_draft(tmp_path: Path) -> None:
    """Three rows cost twice what two do; a verifier that says nothing gets the starting k."""
    folder = letters_folder(tmp_path / "m", SIZE)
    table = StepTimeTable.of((1, 2, 3, 64), (0,), [[0.01], [0.01], [0.02], [0.02]])
    for step_times, first in ((table, 1), (None, START)):
        drafter = scripted_drafter(COUNTER, folder, propose=oracle)
        target = scripted_target(COUNTER, folder, info_overrides={"step_times": step_times})
        async with stack(folder, [target], [drafter]) as s:
            await s.generate(token_ids=[1], max_tokens=20, temperature=0.0)
        assert drafter.requests[0][1].num_draft_tokens == first


@pytest.mark.scenario("B129")
async def test_a_request_for_one_token_asks_no_drafter(tmp_path: Path) -> None:
    """B129: drafting cannot help there."""
    async with counting(tmp_path) as (s, drafter):
        await asyncio.gather(*(s.generate(token_ids=[1], max_tokens=1, temperature=0.0) for _ in range(50)))
    assert not drafter.requests
