from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from protos.generation_pb2 import (
    TOKEN_ORIGIN_ACCEPTED,
    TOKEN_ORIGIN_BONUS,
    Chunk,
    Complete,
    GenerateRequest,
    Started,
)
from specdec.core.errors import DeadlineExceeded, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from specdec.edge.client import Client, GenerateFields, build_request
from tests.edge.scripted_generation import chunk, complete, serve_script, started

EVERY_FIELD: dict[str, Any] = {
    "session_id": "s", "received_tokens": 3, "text": "hi", "max_tokens": 5, "min_tokens": 1,
    "temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
    "presence_penalty": 0.2, "frequency_penalty": 0.3, "logit_bias": {7: -1.5}, "seed": 2**64 - 1,
    "stop": ["x", "y"], "stop_token_ids": [4, 5], "ignore_eos": True, "n": 2, "logprobs": 0, "num_draft_tokens": 0,
    "drafter": "ngram", "verification": "coupled", "grammar": "g", "json_schema": "{}", "regex": "a*",
    "best_of": 2, "prompt_logprobs": 1, "beam_width": 4,
}  # fmt: skip


def test_the_keywords_are_exactly_the_fields_of_the_request() -> None:
    assert set(GenerateFields.__annotations__) == set(GenerateRequest.DESCRIPTOR.fields_by_name)


def test_every_field_reaches_the_request() -> None:
    request = build_request(**EVERY_FIELD)
    assert {f.name for f, _ in request.ListFields()} == set(EVERY_FIELD)
    for name, value in EVERY_FIELD.items():
        got = getattr(request, name)
        assert (dict(got) if isinstance(value, dict) else list(got) if isinstance(value, list) else got) == value


def test_an_empty_list_of_token_ids_is_still_that_kind_of_prompt() -> None:
    assert build_request(token_ids=[]).WhichOneof("prompt") == "token_ids"
    assert build_request(chat=[]).WhichOneof("prompt") == "chat"
    assert build_request(text=None, seed=None) == GenerateRequest()


@pytest.mark.scenario("B123")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 1.9), ("top_k", True), ("max_tokens", " 3 "), ("seed", -1), ("seed", 2**64), ("n", "2"),
        ("temperature", True), ("stop", "one string"), ("stop", [3]), ("logit_bias", {"a": 1.0}),
        ("token_ids", [-1]), ("chat", [{"speaker": "me"}]),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_by_name(name: str, value: object) -> None:
    """B123: 1.9, true and ' 3 ' are refused, not cut or cast."""
    fields: Any = {name: value}
    with pytest.raises(InvalidArgument) as caught:
        build_request(**fields)
    assert caught.value.field == name
    assert caught.value.value == value


def test_two_prompts_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        build_request(text="a", token_ids=[1])


async def test_events_arrive_in_order_and_fields_arrive_whole() -> None:
    script = [
        started(seed=9),
        chunk(0, ("Hel", TOKEN_ORIGIN_ACCEPTED), ("lo", TOKEN_ORIGIN_BONUS)),
        complete(cycles=2, accepted_tokens=1),
    ]
    async with serve_script(lambda _: list(script)) as (address, service), Client(address) as client:
        events = [e async for e in client.generate(chat=[{"role": "user", "content": "hi"}], temperature=0.0)]
        assert (await client.info()).model_name == "scripted"
    assert [type(e) for e in events] == [Started, Chunk, Complete]
    text = events[1]
    assert isinstance(text, Chunk) and text.text == "Hello"
    (request,) = service.requests
    assert request.chat.messages[0].content == "hi"
    assert request.HasField("temperature")
    assert not request.HasField("top_p")


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("top_p", 2.0, "between 0 and 1"),
        NotFound("no session s1"),
        ResourceExhausted("256 generations run", retry_after=2.5),
    ],
)
async def test_the_servers_error_is_raised_with_its_type_and_details(error: Any) -> None:
    async with serve_script(lambda _: [started(), error]) as (address, _), Client(address) as client:
        with pytest.raises(type(error)) as caught:
            async for _event in client.generate(text="x"):
                pass
    assert caught.value.reason == error.reason
    if isinstance(error, InvalidArgument):
        assert (caught.value.field, caught.value.remedy) == (error.field, error.remedy)
    if isinstance(error, Unavailable):
        assert caught.value.retry_after == error.retry_after


async def test_no_coordinator_is_unavailable_and_not_a_hang() -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.info()
        with pytest.raises(Unavailable):
            async for _event in client.generate(text="x"):
                pass


async def test_leaving_the_loop_cancels_the_call_on_the_server() -> None:
    async with serve_script(lambda _: [started()]) as (address, service), Client(address) as client:
        async with aclosing(client.generate(text="x")) as events:
            async for _event in events:
                break
        async with asyncio.timeout(5):
            await service.left.wait()


async def test_the_deadline_ends_a_silent_generation() -> None:
    async with serve_script(lambda _: [started()]) as (address, service), Client(address) as client:
        with pytest.raises(DeadlineExceeded):
            async for _event in client.generate(text="x", deadline=0.2):
                pass
        async with asyncio.timeout(5):
            await service.left.wait()
