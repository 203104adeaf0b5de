import asyncio
import threading
from typing import Any

import pytest

from specdec.core.errors import Unavailable
from specdec.edge.batcher import MicroBatcher
from tests.edge.steps import GatedStep, Job, settled, square, submit, until


async def test_calls_run_on_the_compute_thread_between_steps_and_answer_before_the_next_step_ends() -> None:
    order: list[tuple[str, int]] = []

    def finish(jobs: list[Job]) -> list[tuple[Job, Any]]:
        order.append(("step", threading.get_ident()))
        return square(jobs)

    step = GatedStep(finish)
    async with MicroBatcher(step, queue_limit=10) as batcher:
        tasks = submit(batcher, 1)
        await step.begun()
        closing = asyncio.create_task(batcher.call(lambda: order.append(("call", threading.get_ident()))))
        tasks += submit(batcher, 2)
        await until(lambda: batcher.queued == 1)
        step.gate.release()
        await closing
        assert not tasks[1].done()
        step.gate.release()
        await settled(tasks)
    assert [kind for kind, _ in order] == ["step", "call", "step"]
    assert len({thread for _, thread in order} - {threading.get_ident()}) == 1


async def test_a_job_cancelled_while_a_call_holds_the_thread_is_not_computed_after_it() -> None:
    step, entered, release = GatedStep(), threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert release.wait(timeout=30)

    async with MicroBatcher(step, queue_limit=10) as batcher:
        holding = asyncio.create_task(batcher.call(hold))
        stays, goes = submit(batcher, 1, 2)
        assert await asyncio.to_thread(entered.wait, 30)
        assert batcher.running == 2
        goes.cancel()
        await settled([goes])
        release.set()
        step.gate.release()
        await settled([holding, stays])
    assert step.batches == [[1]]


async def test_a_call_runs_even_if_its_caller_is_cancelled_and_its_error_reaches_a_waiting_one() -> None:
    step, freed = GatedStep(), threading.Event()

    def fail() -> None:
        raise LookupError("no such handle")

    async with MicroBatcher(step, queue_limit=10) as batcher:
        tasks = submit(batcher, 1)
        await step.begun()
        closing = asyncio.create_task(batcher.call(freed.set))
        await asyncio.sleep(0)
        closing.cancel()
        step.gate.release()
        with pytest.raises(LookupError):
            await batcher.call(fail)
        assert freed.is_set()
        await settled(tasks)


async def test_leaving_ends_the_step_runs_the_calls_fails_the_pending_and_leaves_no_task() -> None:
    step, freed = GatedStep(), threading.Event()
    before = asyncio.all_tasks()
    async with MicroBatcher(step, queue_limit=10) as batcher:
        tasks = submit(batcher, 1)
        await step.begun()
        tasks += submit(batcher, 2)
        closing = asyncio.create_task(batcher.call(freed.set))
        await until(lambda: batcher.queued == 1)
        step.gate.release()
    first, second = await settled(tasks)
    await closing
    assert first == 1
    assert isinstance(second, Unavailable)
    assert freed.is_set()
    assert step.batches == [[1]]
    assert asyncio.all_tasks() == before
    with pytest.raises(Unavailable):
        await batcher.submit(Job(3))
    with pytest.raises(Unavailable):
        await batcher.call(freed.set)


async def test_times_are_those_of_the_steps_a_job_was_in() -> None:
    now = 100.0
    rounds = iter([[1], [], [2]])

    def finish(jobs: list[Job]) -> list[tuple[Job, Any]]:
        nonlocal now
        now += 3.0
        done = next(rounds)
        return [(job, job.n) for job in jobs if job.n in done]

    step = GatedStep(finish)
    async with MicroBatcher(step, queue_limit=10, clock=lambda: now) as batcher:
        first = asyncio.create_task(batcher.serve(Job(1)))
        await step.begun()
        second = asyncio.create_task(batcher.serve(Job(2)))
        await until(lambda: batcher.queued == 1)
        step.gate.release(3)
        served = await asyncio.gather(first, second)
    times = [(s.queue_seconds, s.compute_seconds, s.batch_size) for s in served]
    assert times == [(0.0, 3.0, 1), (3.0, 6.0, 1)]


async def test_health_is_a_step_that_finished_lately_or_nothing_to_do() -> None:
    now = 0.0
    step = GatedStep()
    async with MicroBatcher(step, queue_limit=10, clock=lambda: now) as batcher:
        now = 1000.0
        assert batcher.healthy(within=5.0), "idle for long is healthy"
        tasks = submit(batcher, 1)
        await step.begun()
        now = 1004.0
        assert batcher.healthy(within=5.0)
        now = 1006.0
        assert not batcher.healthy(within=5.0), "a step that never ends is not"
        step.gate.release()
        await settled(tasks)
        assert batcher.last_step_finished_at == 1006.0
        assert batcher.healthy(within=5.0)


async def test_what_is_posted_runs_behind_the_answers_and_its_error_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step, posted = GatedStep(), threading.Event()

    def fail() -> None:
        posted.set()
        raise LookupError("nobody waits for this")

    async with MicroBatcher(step, queue_limit=10) as batcher:
        first = submit(batcher, 1)
        await step.begun()
        batcher.post(fail)
        assert not posted.is_set(), "not beside a step"
        step.gate.release()
        await settled(first)
        assert await asyncio.to_thread(posted.wait, 30)
        second = submit(batcher, 2)
        step.gate.release()
        await settled(second)
    batcher.post(fail)  # once closed, nothing
    assert "nobody waits" in caplog.text
    assert step.batches == [[1], [2]]
