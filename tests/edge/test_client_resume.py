"""A generation whose connection is lost goes on: every token once and in order, or a typed error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from protos.generation_pb2 import TOKEN_ORIGIN_BONUS, Chunk, Complete, GenerateRequest, GenerateResponse, Started
from specdec.core.errors import Aborted, ReplicaFault, ResourceExhausted, SpecdecError, Unavailable
from specdec.edge import client as client_module
from specdec.edge.blocking_client import BlockingClient
from specdec.edge.client import Client
from tests.edge.scripted_generation import Script, chunk, complete, serve_script, started

LOST = Unavailable("scripted: the coordinator went away")
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h"]
Steps = list[GenerateResponse | SpecdecError]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(client_module, "LONGEST_PAUSE", 0.01)


def words(first: int, last: int, index: int = 0) -> list[GenerateResponse]:
    """One chunk a token."""
    return [chunk(i, (WORDS[i], TOKEN_ORIGIN_BONUS), index=index) for i in range(first, last)]


def breaking_after(*counts: int, error: SpecdecError = LOST) -> Script:
    """The n-th call gives the tokens up to counts[n], then breaks; the one after the last goes to the end."""
    calls = iter([*counts, len(WORDS)])

    def script(request: GenerateRequest) -> Steps:
        last = next(calls)
        end = complete() if last == len(WORDS) else error
        return [started(), *words(request.received_tokens, last), end]

    return script


async def collected(client: Client, **fields: Any) -> list[Any]:
    return [event async for event in client.generate(**fields)]


def check(events: Sequence[Any]) -> None:
    """Started once, every token once, the end once."""
    assert [type(e) for e in events] == [Started, *[Chunk] * len(WORDS), Complete]
    assert [token.text for e in events[1:-1] for token in e.tokens] == WORDS


@pytest.mark.scenario("B99")
@pytest.mark.parametrize("breaks", [(0,), (3,), (3, 3, 5), (1, 2, 3, 4, 5, 6, 7)])
async def test_every_token_comes_once_however_often_the_stream_breaks(breaks: tuple[int, ...]) -> None:
    """B99: never a restart in the same stream, and no second beginning."""
    async with serve_script(breaking_after(*breaks)) as (address, service), Client(address) as client:
        check(await collected(client, text="x", temperature=0.5))
    first, *others = service.requests
    assert first.text == "x" and len(others) == len(breaks)
    assert [(r.session_id, r.received_tokens) for r in others] == [("s1", count) for count in breaks]
    assert all(r.WhichOneof("prompt") is None and not r.HasField("temperature") for r in others)


async def test_a_resume_of_the_callers_own_counts_from_what_it_has() -> None:
    async with serve_script(breaking_after(5)) as (address, service), Client(address) as client:
        events = await collected(client, session_id="s1", received_tokens=3)
    assert [token.text for e in events[1:-1] for token in e.tokens] == WORDS[3:]
    assert [r.received_tokens for r in service.requests] == [3, 5]


async def test_the_next_turn_of_a_session_counts_from_nothing() -> None:
    """There `received_tokens` says how much of the last answer the caller has."""
    script = breaking_after(4)

    def turn(request: GenerateRequest) -> Steps:
        if request.text:
            request.received_tokens = 0
        return script(request)

    async with serve_script(turn) as (address, service), Client(address) as client:
        check(await collected(client, session_id="s1", received_tokens=7, text="and then?"))
    assert service.requests[1].received_tokens == 4


async def test_choices_are_resumed_each_by_its_own_session() -> None:
    def script(request: GenerateRequest) -> Steps:
        if request.n == 2:
            begun = [GenerateResponse(started=Started(session_id=f"s{i}", index=i)) for i in range(2)]
            return [*begun, *words(0, 3), *words(0, 5, index=1), LOST]
        return [GenerateResponse(started=Started(session_id=request.session_id)),
                *words(request.received_tokens, len(WORDS)), complete()]  # fmt: skip

    async with serve_script(script) as (address, service), Client(address) as client:
        events = await collected(client, text="x", n=2)
    for index in range(2):
        mine = [e for e in events if isinstance(e, Chunk) and e.index == index]
        assert [token.text for e in mine for token in e.tokens] == WORDS
    assert sorted(e.index for e in events if isinstance(e, Complete)) == [0, 1]
    assert {(r.session_id, r.received_tokens) for r in service.requests[1:]} == {("s0", 3), ("s1", 5)}


async def test_another_coordinator_of_the_same_store_is_asked_where_one_is_gone() -> None:
    first, second = serve_script(breaking_after(3)), serve_script(lambda r: breaking_after()(r))
    async with second as (there, taken), first as (here, _), Client(f"{here},{there}") as client:
        check(await collected(client, text="x"))
    assert [r.received_tokens for r in taken.requests] == [3]


@pytest.mark.parametrize("error", [Aborted("taken over"), ReplicaFault("broken"), SpecdecError("a bug")])
async def test_what_another_try_would_not_mend_is_raised(error: SpecdecError) -> None:
    """ABORTED above all: two clients of one session would take it from each other for ever."""
    async with serve_script(breaking_after(3, error=error)) as (address, service), Client(address) as client:
        with pytest.raises(SpecdecError) as caught:
            await collected(client, text="x")
    assert not isinstance(caught.value, Unavailable) and len(service.requests) == 1


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the client waited between attempts; it need not really."""
    noted, sleep = list[float](), asyncio.sleep

    async def note(seconds: float) -> None:
        noted.append(seconds)
        await sleep(0)

    monkeypatch.setattr(client_module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": note}))
    return noted


async def test_an_overloaded_coordinator_is_asked_again_when_it_said(pauses: list[float]) -> None:
    script = breaking_after(3, 3, error=ResourceExhausted("busy", retry_after=7.5))
    async with serve_script(script) as (address, _), Client(address) as client:
        check(await collected(client, text="x"))
    assert pauses == [7.5]


async def test_many_that_lose_one_coordinator_leave_it_once(pauses: list[float]) -> None:
    """If each of them turned to the next address, every second would come back to the dead one."""

    def rest(request: GenerateRequest) -> Steps:
        return [started(), *words(request.received_tokens, len(WORDS)), complete()]

    async with AsyncExitStack() as exits:
        there, taken = await exits.enter_async_context(serve_script(rest))
        dying = AsyncExitStack()
        here, begun = await dying.enter_async_context(serve_script(lambda _: [started(), *words(0, 3)]))
        client = await exits.enter_async_context(Client(f"{here},{there}"))
        running = [asyncio.create_task(collected(client, text="x")) for _ in range(6)]
        async with asyncio.timeout(10):
            while len(begun.requests) < 6:  # noqa: ASYNC110 (what another task has done)
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # the words are on their way
        await dying.aclose()
        for events in await asyncio.gather(*running):
            check(events)
    assert len(taken.requests) == 6 and pauses == []


async def test_a_call_of_which_nothing_has_come_is_not_repeated() -> None:
    """The coordinator may have stored the turn: a second try would store it twice."""
    async with serve_script(lambda _: [LOST]) as (address, service), Client(address) as client:
        with pytest.raises(Unavailable):
            await collected(client, text="x")
    assert len(service.requests) == 1


async def test_patience_ends_and_without_it_nothing_is_resumed() -> None:
    def dead(request: GenerateRequest) -> Steps:
        return [LOST] if request.session_id else [started(), *words(0, 2), LOST]

    for patience, least in ((0.0, 1), (0.1, 3)):
        async with serve_script(dead) as (address, service), Client(address, patience=patience) as client:
            async with asyncio.timeout(5):
                with pytest.raises(Unavailable):
                    await collected(client, text="x")
        assert len(service.requests) >= least
        assert patience or len(service.requests) == 1


async def test_tokens_that_are_not_the_next_ones_are_refused() -> None:
    for wrong in ([*words(0, 2), *words(1, 2)], [*words(0, 2), *words(3, 4)]):
        async with serve_script(lambda _, wrong=wrong: [started(), *wrong]) as (address, _), Client(address) as client:  # type: ignore[misc]
            with pytest.raises(ReplicaFault):
                await collected(client, text="x")


async def test_the_blocking_client_does_the_same() -> None:
    def use(address: str) -> list[Any]:
        with BlockingClient(address) as client:
            assert client.info().model_name == "scripted"
            return list(client.generate(text="x"))

    async with serve_script(breaking_after(3, 5)) as (address, _):
        check(await asyncio.to_thread(use, address))


async def test_leaving_the_blocking_loop_cancels_the_call() -> None:
    def use(address: str) -> None:
        with BlockingClient(address) as client:
            events = client.generate(text="x")
            next(events)
            events.close()

    async with serve_script(lambda _: [started()]) as (address, service):
        await asyncio.to_thread(use, address)
        async with asyncio.timeout(5):
            await service.left.wait()
