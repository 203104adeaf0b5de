"""Keys, quotas, owners and salts over real gRPC."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from protos.generation_pb2 import Chunk, Complete, Started
from specdec.core.errors import NotFound, ResourceExhausted, SpecdecError, Unauthenticated
from specdec.edge.client import Client
from tests.fakes.replicas import ScriptedTarget
from tests.fakes.stack import Stack, scripted_target, stack
from tests.fakes.tables import MARKOV_5, letters_folder

Guarded = tuple[Stack, ScriptedTarget]
ANN, BOB = "specdec-ann-secret", "specdec-bob-secret"
LIMITS = "max_streams=2 tokens_per_minute=100"


def key_file(folder: Path) -> str:
    lines = [f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()}" for name, key in (("ann", ANN), ("bob", BOB))]
    file = folder / "keys"
    file.write_text(f"{lines[0]}\n{lines[1]} {LIMITS}\n")
    return str(file)


@asynccontextmanager
async def guarded(
    tmp_path: Path, spans: InMemorySpanExporter | None = None
) -> AsyncIterator[tuple[Stack, ScriptedTarget]]:
    folder = letters_folder(tmp_path / "m", 5)
    target = scripted_target(MARKOV_5, folder)
    async with stack(folder, [target], api_keys=key_file(tmp_path), span_exporter=spans) as s:
        yield s, target


async def answer(s: Stack, key: str | None, **fields: object) -> tuple[str, list[int]]:
    """Session and ids."""
    session, ids = "", list[int]()
    async with Client(s.address, api_key=key) as client:
        async for event in client.generate(**fields):  # type: ignore[arg-type]
            if isinstance(event, Started):
                session = event.session_id
            elif isinstance(event, Chunk):
                ids += [token.id for token in event.tokens]
    return session, ids


def salts_of(target: ScriptedTarget) -> list[bytes]:
    """Of the streams that were opened, in order."""
    return [request.open.cache_salt for _, request in target.requests if request.open is not None]


async def test_nothing_is_served_without_a_known_key(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (s, target):
        for key in (None, "", "specdec-wrong", ANN[:-1], ANN + "x"):
            with pytest.raises(Unauthenticated):
                await answer(s, key, token_ids=[1], max_tokens=3)
            async with Client(s.address, api_key=key) as client:
                with pytest.raises(Unauthenticated):
                    await client.info()
        assert not target.requests, "no verifier was bothered"
        assert len((await answer(s, ANN, token_ids=[1], max_tokens=3))[1]) == 3


async def test_anothers_session_does_not_exist(tmp_path: Path) -> None:
    """Neither to go on with nor to take over; and its running stream is not disturbed by the attempt."""
    async with guarded(tmp_path) as (s, _):
        async with (
            Client(s.address, api_key=ANN) as client,
            aclosing(client.generate(token_ids=[1], max_tokens=30, temperature=0.0)) as events,
        ):
            started = await anext(events)
            assert isinstance(started, Started)
            refusals = []
            for fields in ({"received_tokens": 0}, {"token_ids": [2]}):
                with pytest.raises(NotFound) as refused:
                    await answer(s, BOB, session_id=started.session_id, **fields)
                refusals.append(str(refused.value))
            with pytest.raises(NotFound) as unknown:
                await answer(s, BOB, session_id="0" * 32, received_tokens=0)
            assert {r.replace(started.session_id, "0" * 32) for r in refusals} == {str(unknown.value)}
            assert [type(event) async for event in events][-1] is Complete
        session, _ = await answer(s, ANN, session_id=started.session_id, token_ids=[2], max_tokens=2)
        assert session == started.session_id


async def test_callers_have_their_calls_and_tokens_and_are_told_when_to_come_again(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (s, _):
        async with Client(s.address, api_key=BOB) as client:
            running = [client.generate(token_ids=[1], max_tokens=900) for _ in range(2)]
            await asyncio.gather(*(anext(events) for events in running))
            for events in running:
                async for event in events:
                    if isinstance(event, Chunk) and event.offset > 120:
                        break
            with pytest.raises(ResourceExhausted, match="max_streams"):
                await answer(s, BOB, token_ids=[1], max_tokens=1)
            await answer(s, ANN, token_ids=[1], max_tokens=1)
            for events in running:
                await events.aclose()
        async with asyncio.timeout(10):
            while s.active:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await answer(s, ANN, token_ids=[1] * 60, max_tokens=60)
        with pytest.raises(ResourceExhausted, match="tokens_per_minute") as refused:
            await answer(s, BOB, token_ids=[1], max_tokens=1)
        assert refused.value.retry_after >= 1.0


async def test_callers_share_no_cache_and_one_callers_sessions_do(tmp_path: Path) -> None:
    """The timing of a shared prefix cache tells what others have asked: replicas are told whom not to mix."""
    async with guarded(tmp_path) as (s, target):
        for key in (ANN, ANN, BOB):
            await answer(s, key, token_ids=[1, 2, 3], max_tokens=2)
    salts = salts_of(target)
    assert salts[0] == salts[1] != salts[2] and all(salts)
    folder = letters_folder(tmp_path / "open", 5)
    free = scripted_target(MARKOV_5, folder)
    async with stack(folder, [free]) as s:
        await s.generate(token_ids=[1], max_tokens=1)
    assert salts_of(free) == [b""]


async def test_keys_are_in_no_log_no_span_no_metric_and_no_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    spans = InMemorySpanExporter()
    async with guarded(tmp_path, spans) as (s, _):
        await answer(s, ANN, token_ids=[1], max_tokens=3)
        said = []
        for key, fields in ((ANN + "x", {"token_ids": [1]}), (ANN, {"token_ids": [99]})):
            with pytest.raises(SpecdecError) as refused:
                await answer(s, key, **fields)
            said.append(str(refused.value))
        async with Client(s.address, api_key=ANN) as client:
            said.append(str(await client.info()))
        said += [s.telemetry.scrape(), caplog.text]
    said += [span.to_json() for span in spans.get_finished_spans()]
    hashes = [hashlib.sha256(key.encode()).hexdigest() for key in (ANN, BOB)]
    assert len(said) > 6 and not any(secret in text for text in said for secret in (ANN, BOB, *hashes))
