import asyncio
import random
from typing import Any

import pytest

from specdec.core.errors import ResourceExhausted, Unavailable
from specdec.edge.batcher import MicroBatcher
from tests.edge.steps import Finish, GatedStep, Job, settled, square, submit, until


async def test_what_queued_while_a_step_ran_is_the_next_batch() -> None:
    step = GatedStep()
    async with MicroBatcher(step, queue_limit=10) as batcher:
        tasks = submit(batcher, 1)
        await step.begun()
        tasks += submit(batcher, 2, 3, 4)
        await until(lambda: batcher.queued == 3)
        assert batcher.running == 1
        step.gate.release(2)
        assert await settled(tasks) == [1, 4, 9, 16]
        assert (batcher.queued, batcher.running) == (0, 0)
    assert step.batches == [[1], [2, 3, 4]]


async def test_a_step_begins_when_nobody_is_waited_for_any_more() -> None:
    asked: list[list[int]] = []

    def patience(jobs: list[Job]) -> float:
        asked.append([job.n for job in jobs])
        return 0.0 if len(jobs) == 3 else 60.0

    step = GatedStep()
    async with MicroBatcher(step, queue_limit=10, patience=patience) as batcher:
        tasks = submit(batcher, 1)
        await until(lambda: len(asked) == 1)
        tasks += submit(batcher, 2)
        await until(lambda: len(asked) == 2)
        assert await batcher.call(lambda: "at once") == "at once"
        assert not step.batches, "a call waits for nobody, and nobody's step begins by it"
        tasks += submit(batcher, 3)
        step.gate.release(1)
        assert await settled(tasks) == [1, 4, 9]
    assert step.batches == [[1, 2, 3]]


async def test_waiting_ends_by_the_clock_too() -> None:
    waits = iter([0.001, 0.0])
    step = GatedStep()
    async with MicroBatcher(step, queue_limit=10, patience=lambda jobs: next(waits)) as batcher:
        step.gate.release(1)
        assert await settled(submit(batcher, 1)) == [1]


async def test_a_batcher_that_waits_for_others_ends_at_once() -> None:
    async with MicroBatcher(GatedStep(), queue_limit=10, patience=lambda jobs: 60.0) as batcher:
        [task] = submit(batcher, 1)
        await until(lambda: batcher.queued == 1)
    assert isinstance((await settled([task]))[0], Unavailable)


async def test_an_unfinished_job_comes_again_before_newer_ones() -> None:
    rounds = iter([[], [2], [1, 3]])

    def finish(jobs: list[Job]) -> list[tuple[Job, Any]]:
        done = next(rounds)
        return [(job, job.n) for job in jobs if job.n in done]

    step = GatedStep(finish)
    async with MicroBatcher(step, queue_limit=10) as batcher:
        tasks = submit(batcher, 1, 2)
        await step.begun()
        tasks += submit(batcher, 3)
        await until(lambda: batcher.queued == 1)
        step.gate.release(3)
        assert await settled(tasks) == [1, 2, 3]
    assert step.batches == [[1, 2], [1, 2, 3], [1, 3]]


async def test_a_step_that_raises_fails_its_own_jobs_and_no_other() -> None:
    def finish(jobs: list[Job]) -> list[tuple[Job, Any]]:
        if jobs[0].n == 1:
            raise ValueError("boom")
        return square(jobs)

    step = GatedStep(finish)
    async with MicroBatcher(step, queue_limit=10) as batcher:
        failing = submit(batcher, 1, 2)
        await step.begun()
        later = submit(batcher, 3)
        step.gate.release(2)
        assert [type(e) for e in await settled(failing)] == [ValueError, ValueError]
        assert await settled(later) == [9]
        assert (batcher.queued, batcher.running) == (0, 0)


async def test_an_exception_as_result_fails_that_job_alone() -> None:
    def step(jobs: list[Job]) -> list[tuple[Job, Any]]:
        return [(job, KeyError(job.n) if job.n == 2 else job.n) for job in jobs]

    async with MicroBatcher(step, queue_limit=10) as batcher:
        first, second, third = await settled(submit(batcher, 1, 2, 3))
    assert (first, third) == (1, 3)
    assert isinstance(second, KeyError)


@pytest.mark.parametrize("answer", [lambda jobs: [(Job(9), 0)], lambda jobs: [(jobs[0], 0), (jobs[0], 0)]])
async def test_a_step_that_returns_a_foreign_job_or_one_twice_fails_loudly(answer: Finish) -> None:
    async with MicroBatcher(answer, queue_limit=10) as batcher:
        (error,) = await settled(submit(batcher, 1))
    assert isinstance(error, AssertionError)


async def test_a_full_queue_refuses_with_a_retry_time_and_running_jobs_do_not_count() -> None:
    step = GatedStep()
    async with MicroBatcher(step, queue_limit=2) as batcher:
        tasks = submit(batcher, 1)
        await step.begun()
        tasks += submit(batcher, 2, 3)
        await until(lambda: batcher.queued == 2)
        with pytest.raises(ResourceExhausted) as refused:
            await batcher.submit(Job(4))
        assert refused.value.retry_after > 0
        step.gate.release(2)
        assert await settled(tasks) == [1, 4, 9]


@pytest.mark.scenario("B88")
async def test_a_job_cancelled_in_the_queue_is_never_computed_and_the_next_starts_at_once() -> None:
    """Cancel the running one of five long jobs and two queued ones: the others are the next step."""
    step = GatedStep()
    async with MicroBatcher(step, queue_limit=10) as batcher:
        running = submit(batcher, 1)
        await step.begun()
        queued = submit(batcher, 2, 3, 4, 5)
        await until(lambda: batcher.queued == 4)
        for task in (running[0], queued[0], queued[2]):
            task.cancel()
        await until(lambda: batcher.queued == 2)
        step.gate.release(2)
        assert await settled([queued[1], queued[3]]) == [9, 25]
    assert step.batches == [[1], [3, 5]]


async def test_a_job_cancelled_in_flight_is_not_given_to_another_step() -> None:
    """It is half done when its caller goes: its result is dropped and its rest is never computed."""
    step = GatedStep(lambda jobs: [] if len(jobs) == 2 else square(jobs))
    async with MicroBatcher(step, queue_limit=10) as batcher:
        stays, goes = submit(batcher, 1, 2)
        await step.begun()
        goes.cancel()
        await settled([goes])
        step.gate.release(2)
        assert await stays == 1
    assert step.batches == [[1, 2], [1]]


@pytest.mark.scenario("B87")
async def test_a_thousand_random_cancels_leave_the_batcher_serving() -> None:
    """Cancels before admission, queued, in flight, half done and after the end; then every probe is served."""
    rng = random.Random(7)
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    computed: list[int] = []

    def step(jobs: list[Job]) -> list[tuple[Job, Any]]:
        done = [job for job in jobs if job.n < 0 or rng.random() < 0.5]
        computed.extend(job.n for job in done)
        return [(job, job.n) for job in done]

    async with MicroBatcher(step, queue_limit=10_000) as batcher:
        for _ in range(20):
            tasks = submit(batcher, *range(50))
            for task in rng.sample(tasks, 50):
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
                task.cancel()
            for n, outcome in enumerate(await settled(tasks)):
                assert outcome == n or isinstance(outcome, asyncio.CancelledError)
            assert await batcher.submit(Job(-1)) == -1
            assert (batcher.queued, batcher.running) == (0, 0)
    assert computed.count(-1) == 20
    assert not troubles


@pytest.mark.scenario("B103")
async def test_no_job_is_lost_when_waiters_time_out_and_come_again() -> None:
    """Fifty callers with short patience that submit again until served: each is answered once, with its own."""

    def step(jobs: list[Job]) -> list[tuple[Job, Any]]:
        return square(jobs[:7])

    async def patient(n: int, batcher: MicroBatcher[Job, Any]) -> int:
        for patience in (0.0, 0.0001, 0.001, 30.0):
            try:
                async with asyncio.timeout(patience):
                    return int(await batcher.submit(Job(n)))
            except TimeoutError:
                continue
        raise AssertionError("never served")

    async with MicroBatcher(step, queue_limit=100) as batcher:
        for _ in range(100):
            served = await asyncio.gather(*(patient(n, batcher) for n in range(50)))
            assert served == [n**2 for n in range(50)]
            assert (batcher.queued, batcher.running) == (0, 0)
