"""A real server with a KV tier: blocks go to it behind the answer, once each, and are brought before the first one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, cast

from specdec.core.tree import Ids
from specdec.edge.messages import Refusal
from specdec.lm.loading import LoadedModel
from specdec.lm.network import BLOCK
from target_service.session import TargetSession
from target_service.sharing import KVSharing
from tests.target_service.conftest import MakeEngine
from tests.target_service.driver import generate, plain
from tests.target_service.wire import converse, prompt, serving, until, verified


class Recorded:
    """In place of `KVSharing`. kept: full blocks of a session each time it was offered; brought: contexts asked for.
    gate: `keep` waits for it."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.brought: list[tuple[int, bytes]] = []
        self.gate = threading.Event()
        self.gate.set()

    def keep(self, session: TargetSession) -> None:
        assert self.gate.wait(timeout=30)
        self.kept.append(len(session.sequence.digests))

    async def bring(self, batcher: object, context: Ids, salt: bytes) -> int:
        self.brought.append((len(context), salt))
        return 0

    async def hand_over(self, batcher: object, sessions: Iterable[TargetSession]) -> None:
        raise RuntimeError("scripted")


def shared(recorded: Recorded) -> KVSharing:
    return cast(KVSharing, recorded)


async def test_an_answer_does_not_wait_for_its_blocks_to_be_copied(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    recorded = Recorded()
    recorded.gate.clear()
    async with serving(models["llama"], make_engine(), sharing=shared(recorded)) as served:
        client = served.client()
        verified(await client.ask(0, prompt(2 * BLOCK + 3), open=client.opening()))
        assert recorded.kept == []
        recorded.gate.set()
        await until(lambda: recorded.kept == [2])


async def test_a_session_is_offered_when_a_block_has_become_full_and_not_otherwise(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    recorded = Recorded()
    async with serving(models["llama"], make_engine(), sharing=shared(recorded)) as served:
        given = prompt(BLOCK - 3)
        answer = await converse(served.client(), given, BLOCK + 10, plain)
        await until(lambda: len(recorded.kept) == 2)
    assert recorded.kept == [1, 2]
    assert recorded.brought == [(len(given), b"")], "once, where the stream begins"
    assert answer == generate(make_engine(), given, BLOCK + 10)


async def test_a_context_that_begins_elsewhere_is_stale_not_brought(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    recorded = Recorded()
    async with serving(models["llama"], make_engine(), sharing=shared(recorded)) as served:
        client = served.client()
        reply = await client.ask(40, prompt(8), open=client.opening())
        assert not isinstance(reply.result, Refusal) and recorded.brought == []


async def test_a_replica_drains_though_its_blocks_cannot_be_stored(
    models: dict[str, LoadedModel], make_engine: MakeEngine
) -> None:
    """Else its sessions would stay until it is killed."""
    async with serving(models["llama"], make_engine(), sharing=shared(Recorded())) as served:
        failure: Any = None
        try:
            await served.service.drain()
        except RuntimeError as error:
            failure = error
        assert failure is not None and served.service.draining
