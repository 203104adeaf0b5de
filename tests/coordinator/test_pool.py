"""Which replicas are used: found by name, checked on each connect, spread over, pinned by model."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator import readiness, replica
from coordinator.readiness import watch_readiness
from specdec.core.errors import Unavailable
from specdec.core.sampling import SamplingParams
from specdec.core.step_time import StepTimeTable
from specdec.edge.channel import open_channel
from specdec.edge.server import LIVE
from tests.fakes.scripted import Request
from tests.fakes.stack import Answer, scripted_drafter, scripted_target, serve_replica, stack, until
from tests.fakes.stores import GatedStore
from tests.fakes.tables import MARKOV_5, MARKOV_5_DRAFT, letters_folder
from tests.reference import reference_tokens

SEEDED = {"token_ids": [1], "seed": 3, "num_draft_tokens": 3, "max_tokens": 30}


def is_the_targets_own(answer: Answer) -> bool:
    return answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, len(answer.ids))


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "protocol": ({"protocol_version": 2}, "speaks version 2, we speak 1"),
    "role": ({"role": "coordinator"}, "a 'coordinator' replica in the"),
    "tokenizer": ({"tokenizer_hash": "feedbeef"}, "feedbeef, ours"),
    "vocabulary": ({"vocab_size": 7}, "7 tokens, we have 5"),
    "info": ({"step_times": StepTimeTable((4, 2), (0,), ((1.0,), (1.0,)))}, "must ascend"),
}


@pytest.mark.scenario("B31", "B32")
@pytest.mark.parametrize("reason", MISFITS)
@pytest.mark.parametrize("role", ["target", "draft"])
async def test_a_replica_that_does_not_fit_is_excluded_aloud(
    tmp_path: Path, role: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B31, B32: named in the log with both sides, counted, never used; once mended it is taken in."""
    overrides, sentence = MISFITS[reason]
    folder = letters_folder(tmp_path / "m", 5)
    make, table = (scripted_target, MARKOV_5) if role == "target" else (scripted_drafter, MARKOV_5_DRAFT)
    misfit: Any = make(table, folder, info_overrides=dict(overrides))
    targets, drafters = [scripted_target(MARKOV_5, folder)], [scripted_drafter(MARKOV_5_DRAFT, folder)]
    (targets if role == "target" else drafters).append(misfit)
    async with stack(folder, targets, drafters) as s:
        assert s.metric("specdec_excluded_replicas", role=role, reason=reason) == 1
        assert s.metric("specdec_ready_replicas", role=role) == 1
        info = await s.client.info()
        assert (info.ready_verifiers, info.ready_drafters) == (1, 1)
        answers = [await s.generate(**SEEDED) for _ in range(2)]
        assert not misfit.requests
        misfit.info_overrides.clear()
        await until(lambda: s.metric("specdec_ready_replicas", role=role) == 2)
        assert s.metric("specdec_excluded_replicas", role=role) == 0
    assert all(is_the_targets_own(answer) for answer in answers)
    assert f"excluded: {reason}: " in caplog.text
    assert sentence in caplog.text


@pytest.mark.scenario("B31", "B34")
async def test_padded_embeddings_fit_and_a_drafter_without_a_tokenizer_fits_any(tmp_path: Path) -> None:
    """B31, B34: ids are compared, not the widths of matrices; an n-gram drafter names no tokenizer."""
    folder = letters_folder(tmp_path / "m", 5)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 64}))
    drafter = scripted_drafter(MARKOV_5_DRAFT, folder, info_overrides={"tokenizer_hash": "", "vocab_size": 0})
    async with stack(folder, [scripted_target(MARKOV_5, folder)], [drafter]) as s:
        info = await s.client.info()
        answer = await s.generate(**SEEDED)
    assert (info.ready_verifiers, info.ready_drafters, info.vocab_size) == (1, 1, 5)
    assert info.speculation_enabled
    assert is_the_targets_own(answer)
    assert answer.stats.draft_tokens


async def test_a_session_stays_with_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two verifiers of one model and one of another: a session moves within its model, or waits, but never changes."""
    monkeypatch.setattr(replica, "FIRST_PAUSE", 0.02)
    folder = letters_folder(tmp_path / "m", 5)
    one, two = (scripted_target(MARKOV_5, folder, replica_id=i) for i in "12")
    other = scripted_target(MARKOV_5_DRAFT, folder, replica_id="other")
    async with stack(folder, [one, two, other], failover_timeout=0.5) as s:
        await s.kill(other)
        await until(lambda: len(s.targets.ready()) == 2)
        first = await s.generate(**SEEDED)
        await s.revive(other)
        await until(lambda: len(s.targets.ready()) == 3)
        session = first.started.session_id
        record = await s.store.load(session)
        assert record is not None
        assert record.fingerprint == MARKOV_5.name
        for dead in (one, two):
            again = await s.generate(session_id=session, token_ids=[2], seed=5, max_tokens=5)
            assert len(again.ids) == 5
            await s.kill(dead)
        with pytest.raises(Unavailable) as error:
            await s.generate(session_id=session, token_ids=[2], max_tokens=5)
        assert error.value.reason == "NO_TARGET"
        assert not other.sent(session)
        assert len((await s.generate(**SEEDED)).ids) == 30, "a new session takes what there is"
        assert other.requests


@pytest.mark.scenario("B140")
async def test_replicas_behind_one_name_share_the_work_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B140: three get about a third each, a fourth joins, one leaves amid its streams: no request notices."""
    names: dict[str, list[str]] = {"drafters": [f"127.0.0.{i}" for i in (1, 2, 3)]}
    resolve_from(names, monkeypatch)
    folder = letters_folder(tmp_path / "m", 5)
    drafters = [scripted_drafter(MARKOV_5_DRAFT, folder, replica_id=str(i)) for i in range(4)]
    async with AsyncExitStack() as exits:
        server = await exits.enter_async_context(serve_replica(drafters[0]))
        for i in (1, 2, 3):
            await exits.enter_async_context(serve_replica(drafters[i], server.port, f"127.0.0.{i + 1}"))
        targets = [scripted_target(MARKOV_5, folder)]
        s = await exits.enter_async_context(stack(folder, targets, [f"drafters:{server.port}"]))
        await asyncio.gather(*(s.generate(**{**SEEDED, "max_tokens": 6}) for _ in range(60)))
        shares = [drafter.streams_opened / 60 for drafter in drafters]
        assert shares[3] == 0
        assert all(0.2 <= share <= 0.45 for share in shares[:3])
        names["drafters"].append("127.0.0.4")
        await until(lambda: len(s.drafters.ready()) == 4)
        running = [asyncio.create_task(s.generate(**{**SEEDED, "max_tokens": 150})) for _ in range(8)]
        await until(lambda: sum(drafter.open_streams for drafter in drafters) == 8)
        assert drafters[3].streams
        names["drafters"].pop(0)
        await until(lambda: not drafters[0].streams)
        answers = await asyncio.gather(*running)
        assert all(is_the_targets_own(answer) and not answer.stats.fallbacks for answer in answers)
        assert s.metric("specdec_quarantines_total") == 0
        await until(lambda: not s.drafters._leaving)


def resolve_from(names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service for names of ours; a name that is not there does not resolve."""
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        if host[0].isdigit():
            return await real(host, port, **options)
        if host not in names:
            raise socket.gaierror("the name service is away")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in names[host]]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)


async def test_a_name_service_that_is_away_costs_no_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each name keeps what it last gave, whichever of several fails."""
    names = {"first": ["127.0.0.1"], "second": ["127.0.0.1"]}
    resolve_from(names, monkeypatch)
    folder = letters_folder(tmp_path / "m", 5)
    async with AsyncExitStack() as exits:
        ports = []
        for _ in range(2):
            server = await exits.enter_async_context(serve_replica(scripted_target(MARKOV_5, folder)))
            ports.append(server.port)
        s = await exits.enter_async_context(stack(folder, [f"first:{ports[0]}", f"second:{ports[1]}"]))
        names.clear()
        await until(lambda: caplog.text.count("does not resolve") >= 4)
        assert len(s.targets.ready()) == 2


@pytest.mark.scenario("B103", "B136", "B139")
async def test_health_says_whether_requests_can_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B103, B136: no verifier or no store: not ready; no drafter: ready. It answers while requests wait. B139: what the
    coordinator lacks is no reason to restart it."""
    folder = letters_folder(tmp_path / "m", 5)
    monkeypatch.setattr(readiness, "PERIOD", 0.02)
    store = GatedStore()
    gate = asyncio.Event()

    async def wait(request: Request, reply: Any) -> Any:
        await gate.wait()
        return reply

    target, drafter = scripted_target(MARKOV_5, folder, script=wait), scripted_drafter(MARKOV_5_DRAFT, folder)
    async with (
        stack(folder, [target], [drafter], store=store) as s,
        watch_readiness(s.server, s.targets, store, s.servicer._wiring.metrics),
        open_channel(s.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)

        async def becomes(status: int) -> None:
            updates = health.Watch(health_pb2.HealthCheckRequest())
            async with asyncio.timeout(10):
                async for update in updates:
                    if update.status == status:
                        break
            updates.cancel()

        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        await becomes(serving)
        waiting = [asyncio.create_task(s.generate(**SEEDED)) for _ in range(50)]
        await until(lambda: len(target.streams) == 50)
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=1)).status == serving
        gate.set()
        await asyncio.gather(*waiting)
        await s.kill(drafter)
        store.down = True
        await becomes(not_serving)
        store.down = False
        await becomes(serving)
        await s.kill(target)
        await becomes(not_serving)
        assert (await health.Check(health_pb2.HealthCheckRequest(service=LIVE), timeout=1)).status == serving
        await s.revive(target)
        await becomes(serving)
