"""Many sessions on one replica: each gets its own draft, whoever comes and goes, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import grpc
import pytest

from draft_service.config import DraftConfig
from draft_service.drafters import Drafter, DraftJob, DraftModel
from draft_service.drafters.ngram import NgramDrafter
from draft_service.health import watch_health
from draft_service.session import DraftSession
from specdec.core.draft import Draft, DraftKind
from specdec.core.errors import SpecdecError
from specdec.core.laws import check_draws
from specdec.edge.draft_codec import encode_draft_request
from specdec.edge.messages import DraftReply
from specdec.edge.server import GrpcServer
from tests.draft_service.conftest import NewDrafter
from tests.draft_service.jobs import draft_one, job, random_ids, tokens
from tests.draft_service.wire import SAMPLED, Client, Served, drafted, refused, serving, until


async def test_many_sessions_are_batched_and_each_gets_its_own(replica: Served, new_drafter: NewDrafter) -> None:
    clients = [replica.client(f"s{i}") for i in range(12)]
    contexts = [random_ids(i, 5 + i) for i in range(12)]

    async def converse(i: int) -> list[DraftReply]:
        opening = clients[i].opening(params=SAMPLED, seed=i)
        replies = [await clients[i].ask(0, contexts[i], 1 + i % 5, open=opening)]
        for n in range(len(contexts[i]), len(contexts[i]) + 4):
            replies.append(await clients[i].ask(n, [n], 1 + i % 5))
        return replies

    everything = await asyncio.gather(*(converse(i) for i in range(12)))
    assert max(reply.timing.batch_size for replies in everything for reply in replies) > 1
    for i, replies in enumerate(everything):
        fresh, context = new_drafter(), list(contexts[i])
        for reply in replies:
            expected = draft_one(fresh, job(context, 1 + i % 5, SAMPLED, seed=i))
            assert tokens(drafted(reply)) == tokens(expected)
            context.append(len(context))


class Gated:
    """Stops on the compute thread, before it drafts, whenever its gate is shut."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.model = inner.model
        self.kv_total = inner.kv_total
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[DraftSession]] = []

    @property
    def kv_free(self) -> int:
        return self.inner.kv_free

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        self.batches.append([job.session for job in jobs])
        assert self.gate.wait(20), "the test opens the gate"
        return self.inner.propose(jobs)

    def close(self, session: DraftSession) -> None:
        self.inner.close(session)


def swapped(outcomes: list[Draft | SpecdecError | None]) -> list[Draft | SpecdecError | None]:
    """The injector of B06: outcomes matched to jobs by a row that has moved."""
    return [*outcomes[1:], *outcomes[:1]]


async def cancelled_mate(served: Served, gated: Gated, clients: list[Client]) -> list[DraftReply]:
    """Sessions A and B while C, before them in the batch, is cancelled in mid-draft."""
    gated.gate.clear()
    opening = clients[0].opening(params=SAMPLED)
    warm = asyncio.create_task(served.client("warm").sampled(0, [1], open=replace(opening, session_id="warm")))
    await until(lambda: len(gated.batches) == 1)
    mate = served.client("c")
    request = mate.request(0, random_ids(9, 5), kind=DraftKind.SAMPLED, support=8, open=mate.opening(params=SAMPLED))
    await mate.call.write(encode_draft_request(request))
    await until(lambda: served.service.load().queued == 1)
    asks = [
        asyncio.create_task(client.sampled(0, random_ids(i, 6), open=client.opening(params=SAMPLED, seed=i)))
        for i, client in enumerate(clients)
    ]
    await until(lambda: served.service.load().queued == 1 + len(clients))
    mate.call.cancel()
    await until(lambda: served.service.load().queued == len(clients))
    gated.gate.set()
    await warm
    return list(await asyncio.gather(*asks))


def judge(replies: list[DraftReply], seeds: range) -> bool:
    """Whether each reply was drawn with its own session's key and context."""
    for seed, reply in zip(seeds, replies, strict=True):
        try:
            check_draws(drafted(reply), seed, 6)
        except SpecdecError:
            return False
    return True


@pytest.mark.scenario("B06")
@pytest.mark.parametrize("injected", [False, True])
async def test_a_mate_that_is_cancelled_does_not_shift_the_rows(
    new_drafter: NewDrafter, monkeypatch: pytest.MonkeyPatch, injected: bool
) -> None:
    """Drafts are matched to sessions by identity; matched by row, a session would be judged with its neighbour's q."""
    gated = Gated(new_drafter())
    if injected:
        propose = gated.propose
        monkeypatch.setattr(gated, "propose", lambda jobs: swapped(propose(jobs)))
    async with serving({"lm": gated}) as served:
        clients = [served.client("a"), served.client("b")]
        replies = await cancelled_mate(served, gated, clients)
        assert judge(replies, range(2)) is not injected


@pytest.mark.scenario("B83")
@pytest.mark.scenario("B90")
@pytest.mark.parametrize("phase", ["idle", "queued", "computing", "half closed"])
async def test_a_stream_that_ends_frees_its_session_in_whatever_phase(new_drafter: NewDrafter, phase: str) -> None:
    """KV, stream and queue are as before; others are served on."""
    gated = Gated(new_drafter())
    async with serving({"lm": gated}) as served:
        other, leaving = served.client("other"), served.client("leaving")
        await other.ask(0, [1, 2, 3], open=other.opening())
        used = gated.kv_total - gated.kv_free
        await leaving.ask(0, random_ids(1, 70), open=leaving.opening())
        assert gated.kv_total - gated.kv_free > used
        if phase == "half closed":
            await leaving.call.done_writing()
            assert await leaving.call.read() is grpc.aio.EOF
        elif phase != "idle":
            await leave_while(served, gated, leaving, other, phase)
        else:
            leaving.call.cancel()
        await until(lambda: gated.kv_total - gated.kv_free == used and served.service.load().queued == 0)
        assert served.server.active_calls == 1
        assert drafted(await other.ask(3, [4])).tree.num_draft_tokens == 4


async def leave_while(served: Served, gated: Gated, leaving: Client, other: Client, phase: str) -> None:
    """Cancels `leaving` while its job waits, or while it is on the compute thread."""
    gated.gate.clear()
    before = len(gated.batches)
    blocker = served.client("blocker")
    if phase == "queued":
        request = blocker.request(0, [1], open=blocker.opening())
        await blocker.call.write(encode_draft_request(request))
        await until(lambda: len(gated.batches) == before + 1)
    await leaving.call.write(encode_draft_request(leaving.request(70, [5])))
    if phase == "queued":
        await until(lambda: served.service.load().queued == 1)
    else:
        await until(lambda: len(gated.batches) == before + 1)
    leaving.call.cancel()
    await until(lambda: served.service.load().running + served.service.load().queued == (phase == "queued"))
    gated.gate.set()
    blocker.call.cancel()


@pytest.mark.scenario("B90")
async def test_many_short_sessions_leave_nothing_behind(replica: Served) -> None:
    """Streams that are cancelled with a message on its way, over and over."""
    lm = replica.lanes["lm"].drafter
    tasks = len(asyncio.all_tasks())
    for i in range(60):
        client = replica.client(f"s{i}")
        await client.call.write(encode_draft_request(client.request(0, random_ids(i, 9), open=client.opening())))
        if i % 3:
            await client.call.read()
        client.call.cancel()
    await until(lambda: lm.kv_free == lm.kv_total and replica.server.active_calls == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_a_full_queue_refuses_in_band(new_drafter: NewDrafter) -> None:
    gated = Gated(new_drafter())
    config = DraftConfig(model="unused", drafters=("lm",), queue_limit=1)
    async with serving({"lm": gated}, config=config) as served:
        gated.gate.clear()
        clients = [served.client(f"s{i}") for i in range(3)]
        running = asyncio.create_task(clients[0].ask(0, [1], open=clients[0].opening()))
        await until(lambda: len(gated.batches) == 1)
        waiting = asyncio.create_task(clients[1].ask(0, [2], open=clients[1].opening()))
        await until(lambda: served.service.load().queued == 1)
        reply = await clients[2].ask(0, [3], open=clients[2].opening())
        assert refused(reply).reason == "OVERLOADED" and reply.load.queued == 1
        gated.gate.set()
        for task in (running, waiting):
            drafted(await task)


async def test_health_tells_of_a_forward_that_never_ends(new_drafter: NewDrafter) -> None:
    gated = Gated(new_drafter())
    async with serving({"lm": gated, "ngram": NgramDrafter(DraftModel())}) as served:
        lanes = served.lanes.values()
        seen: list[bool] = []
        alive: list[bool] = []

        class Health:
            async def set_serving(self, serving: bool, *, live: bool = True) -> None:
                seen.append(serving)
                alive.append(live)

        async with watch_health(
            cast(GrpcServer, Health()),
            lanes,
            draining=lambda: served.service.draining,
            stuck_after=0.05,
            interval=0.005,
        ):
            await until(lambda: seen[-1:] == [True])
            gated.gate.clear()
            client = served.client()
            stuck = asyncio.create_task(client.ask(0, [1], open=client.opening()))
            await until(lambda: seen[-1] is False)
            assert alive[-1] is False, "only a restart ends it"
            gated.gate.set()
            drafted(await stuck)
            await until(lambda: seen[-1] is True)
            await served.service.drain()
            await until(lambda: seen[-1] is False)
            assert alive[-1] is True, "whoever drains is let do it"
