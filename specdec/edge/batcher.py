"""Continuous batching: what queued while the last step ran is the next batch, and who is about to come may be waited
for. One worker task on the event loop, one thread that computes: whatever only that thread touches needs no lock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from specdec.core.errors import ResourceExhausted, Unavailable

Job = TypeVar("Job")
Result = TypeVar("Result")
T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Served(Generic[Result]):
    """queue_seconds: from submit to the start of the first step that was given the job; compute_seconds: the
    steps it was in, whole; batch_size: jobs given to the last of them."""

    result: Result
    queue_seconds: float
    compute_seconds: float
    batch_size: int


@dataclass(slots=True, eq=False)
class _Entry(Generic[Job, Result]):
    job: Job
    future: asyncio.Future[Served[Result]]
    submitted: float
    started: float | None = None
    compute: float = 0.0


@dataclass(slots=True, eq=False)
class _Call:
    fn: Callable[[], Any]
    future: asyncio.Future[Any] = field(repr=False)


def compute_thread(name: str) -> ThreadPoolExecutor:
    """One thread. A model must be loaded on the thread that will compute with it: OpenMP keeps a team of threads for
    every thread that has ever led one, and once they outnumber the cores they sleep where they would have spun, which
    makes a small model's forward half as long again."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


class MicroBatcher(Generic[Job, Result]):
    """`step` runs on the compute thread with every pending job, oldest first, and returns those it finished,
    each with its result (an Exception instance as result fails that job alone). Jobs it does not return, e.g.
    a prefill done in part, come again in the next step, before newer ones. A step that raises fails the jobs
    it was given and no other. Jobs are told apart by identity; one object may be submitted once at a time.

    thread: from `compute_thread`, the owner's to shut down; None: one of its own. patience: seconds to wait for more
    before a step of these jobs, 0: none; asked again whenever one has come or the time is over. parked: whether a job
    that steps were given waits for something else than its turn, so that it counts as queued all the same.

    Use as `async with`. On exit the step in flight ends, pending calls run, pending jobs fail with
    Unavailable."""

    def __init__(
        self,
        step: Callable[[list[Job]], list[tuple[Job, Result]]],
        *,
        queue_limit: int,
        name: str = "compute",
        thread: ThreadPoolExecutor | None = None,
        patience: Callable[[list[Job]], float] = lambda jobs: 0.0,
        parked: Callable[[Job], bool] = lambda job: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = thread
        self._patience = patience
        self._parked = parked
        self._step = step
        self._queue_limit = queue_limit
        self._clock = clock
        self._name = name
        self._queue: dict[int, _Entry[Job, Result]] = {}
        self._running: dict[int, _Entry[Job, Result]] = {}
        self._calls: list[_Call] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._busy_since = self.last_step_finished_at = clock()

    @property
    def queued(self) -> int:
        """Jobs that no step has been given yet."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Jobs given to a step and not finished."""
        return len(self._running)

    @property
    def under_way(self) -> bool:
        """Whether a step has begun a job that it has not finished."""
        return any(not self._parked(entry.job) for entry in self._running.values())

    def healthy(self, within: float) -> bool:
        """Whether a step finished, or work began, in the last `within` seconds; always true with nothing to
        do."""
        if not self._queue and not self._running:
            return True
        return self._clock() - max(self.last_step_finished_at, self._busy_since) < within

    async def submit(self, job: Job) -> Result:
        """The job's result. Cancelling this call drops the job if it is queued, and its result if it is in
        flight.

        Raises ResourceExhausted (the queue is full), Unavailable (shutting down), or what the step raised."""
        return (await self.serve(job)).result

    async def serve(self, job: Job) -> Served[Result]:
        """`submit`, with the job's times."""
        if self._closing:
            raise Unavailable("shutting down", reason="SHUTTING_DOWN")
        if len(self._queue) >= self._queue_limit:
            raise ResourceExhausted(f"{len(self._queue)} jobs are queued: the limit is {self._queue_limit}")
        key = id(job)
        assert key not in self._queue and key not in self._running, "this job is already submitted"
        if not self._queue and not self._running:
            self._busy_since = self._clock()
        entry = _Entry[Job, Result](job, asyncio.get_running_loop().create_future(), self._clock())
        self._queue[key] = entry
        self._wake.set()
        try:
            return await entry.future
        finally:
            self._queue.pop(key, None)
            self._running.pop(key, None)

    async def call(self, fn: Callable[[], T]) -> T:
        """Run `fn` on the compute thread, between steps. It runs even if this call is cancelled: it may free
        things.

        Raises Unavailable (shut down), or what `fn` raised."""
        if self._closing:
            raise Unavailable("shutting down", reason="SHUTTING_DOWN")
        call = _Call(fn, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._wake.set()
        result: T = await call.future
        return result

    def post(self, fn: Callable[[], object]) -> None:
        """Run `fn` on the compute thread between steps, as `call` does, with nobody who waits; what it raises is
        logged. Nothing is run any more once shutting down."""
        if not self._closing:
            call = _Call(fn, asyncio.get_running_loop().create_future())
            call.future.cancel()
            self._calls.append(call)
            self._wake.set()

    async def __aenter__(self) -> Self:
        self._executor = self._given or compute_thread(self._name)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._tasks.create_task(self._work(), name=f"{self._name}-worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        self._wake.set()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            if self._given is None:
                self._executor.shutdown(wait=True)

    async def _work(self) -> None:
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            while (self._queue or self._running or self._calls) and not self._closing:
                await self._gathered()
                if not self._closing:
                    await self._turn()
        for entry in [*self._running.values(), *self._queue.values()]:
            _resolve(entry.future, Unavailable("shutting down", reason="SHUTTING_DOWN"))
        await self._compute([])

    async def _gathered(self) -> None:
        """Until nobody is waited for any more. Calls wait for nobody, nor does what a step has begun. Those whom the
        last step answered go first: before that nobody can tell when they will be back."""
        await asyncio.sleep(0)
        while self._queue and not (self.under_way or self._closing):
            seconds = self._patience([entry.job for entry in self._queue.values()])
            if seconds <= 0:
                return
            if self._calls:
                await self._compute([])
                continue
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    async def _turn(self) -> None:
        """The calls that wait, then one step."""
        self._running.update(self._queue)
        self._queue.clear()
        batch = list(self._running.values())
        finished = await self._compute(batch)
        if finished or self.under_way:
            self.last_step_finished_at = self._clock()
        for entry, outcome in finished:
            self._running.pop(id(entry.job), None)
            _resolve(entry.future, outcome)

    async def _compute(
        self, batch: list[_Entry[Job, Result]]
    ) -> list[tuple[_Entry[Job, Result], Served[Result] | Exception]]:
        calls, self._calls = self._calls, []
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._on_thread, loop, calls, batch)

    def _on_thread(
        self, loop: asyncio.AbstractEventLoop, calls: list[_Call], batch: list[_Entry[Job, Result]]
    ) -> list[tuple[_Entry[Job, Result], Served[Result] | Exception]]:
        for call in calls:
            # A caller need not wait for the step that follows.
            loop.call_soon_threadsafe(_resolve, call.future, _run_call(call))
        given = [entry for entry in batch if not entry.future.done()]
        if not given:
            return []
        begun = self._clock()
        for entry in given:
            entry.started = begun if entry.started is None else entry.started
        try:
            results = self._step([entry.job for entry in given])
            finished = _match(given, results)
        except Exception as error:
            return [(entry, error) for entry in given]
        seconds = self._clock() - begun
        for entry in given:
            if self._parked(entry.job):
                entry.started = None
            else:
                entry.compute += seconds
        return [(entry, self._outcome(entry, result, len(given))) for entry, result in finished]

    def _outcome(self, entry: _Entry[Job, Result], result: Result, batch_size: int) -> Served[Result] | Exception:
        if isinstance(result, Exception):
            return result
        started = self._clock() if entry.started is None else entry.started
        return Served(result, started - entry.submitted, entry.compute, batch_size)


def _match(
    given: list[_Entry[Job, Result]], results: list[tuple[Job, Result]]
) -> list[tuple[_Entry[Job, Result], Result]]:
    entries = {id(entry.job): entry for entry in given}
    finished = []
    for job, result in results:
        entry = entries.pop(id(job), None)
        assert entry is not None, "a step must return only jobs it was given, each once"
        finished.append((entry, result))
    return finished


def _run_call(call: _Call) -> object:
    try:
        return call.fn()
    except Exception as error:
        if call.future.cancelled():
            _log.exception("a call between steps failed, and nobody waits for it")
        return error


def _resolve(future: asyncio.Future[Any], outcome: object) -> None:
    """Does nothing to a future that its owner has given up."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
