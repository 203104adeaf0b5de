"""`specdec generate` and `specdec chat` as a user runs them: processes of their own, against a scripted coordinator."""

from __future__ import annotations

import asyncio
import signal

from protos.generation_pb2 import (
    TOKEN_ORIGIN_ACCEPTED,
    TOKEN_ORIGIN_BONUS,
    GenerateRequest,
    GenerateResponse,
    Started,
)
from specdec.core.errors import InvalidArgument, SpecdecError
from tests.edge.scripted_generation import chunk, complete, serve_script, started
from tests.edge.specdec_command import running, specdec

ANSWER: list[GenerateResponse | SpecdecError] = [
    started(seed=9),
    chunk(0, ("Hel", TOKEN_ORIGIN_ACCEPTED), ("lo", TOKEN_ORIGIN_BONUS)),
    chunk(2, (" wörld", TOKEN_ORIGIN_BONUS)),
    complete(cycles=2, draft_tokens=4, accepted_tokens=1),
]


def answer(request: GenerateRequest) -> list[GenerateResponse | SpecdecError]:
    return ANSWER


async def test_the_text_alone_goes_to_standard_output() -> None:
    async with serve_script(answer) as (address, service):
        ended = await specdec("generate", "Say hello", "--address", address, "--temperature", "0", "--stats")
    assert (ended.code, ended.out) == (0, "Hello wörld\n")
    assert "acceptance rate" in ended.err and "25%" in ended.err
    (request,) = service.requests
    assert request.text == "Say hello"
    assert request.temperature == 0.0 and request.HasField("temperature")
    assert not request.HasField("top_k") and not request.HasField("num_draft_tokens")


async def test_every_flag_reaches_its_field() -> None:
    flags = {
        "max_tokens": "5", "min_tokens": "1", "temperature": "0.5", "top_k": "3", "top_p": "0.9", "min_p": "0.1",
        "repetition_penalty": "1.1", "presence_penalty": "0.2", "frequency_penalty": "0.3", "seed": "7",
        "num_draft_tokens": "0", "drafter": "ngram", "verification": "coupled", "n": "2", "logprobs": "1",
        "session_id": "s1", "received_tokens": "4", "stop": "END", "stop_token_ids": "3", "logit_bias": "5=-inf",
    }  # fmt: skip
    given = [part for name, value in flags.items() for part in ("--" + name.replace("_", "-"), value)]
    async with serve_script(answer) as (address, service):
        ended = await specdec("generate", "-", "--chat", "--ignore-eos", *given, "--address", address, stdin="Hi")
    assert ended.code == 0, ended.err
    (request,) = service.requests
    assert {f.name for f, _ in request.ListFields()} == {*flags, "chat", "ignore_eos"}
    assert request.seed == 7
    assert request.chat.messages[0].content == "Hi"
    assert dict(request.logit_bias) == {5: float("-inf")}
    assert list(request.stop) == ["END"]


async def test_a_refusal_is_one_sentence_on_standard_error() -> None:
    refusal: list[GenerateResponse | SpecdecError] = [InvalidArgument("top_p", 2.0, "between 0 and 1")]
    async with serve_script(lambda _: refusal) as (address, _):
        ended = await specdec("generate", "x", "--top-p", "2", "--address", address)
    assert ended.code == 2
    assert "specdec generate: top_p = 2.0: between 0 and 1" in ended.err
    assert "Traceback" not in ended.err


async def test_no_coordinator_is_told_with_its_address_and_what_to_do() -> None:
    ended = await specdec("generate", "x", "--address", "127.0.0.1:1")
    assert ended.code == 1
    assert "127.0.0.1:1" in ended.err and "specdec up" in ended.err and "Traceback" not in ended.err


async def test_chat_keeps_one_session_over_its_turns() -> None:
    async with serve_script(answer) as (address, service):
        ended = await specdec("chat", "--system", "Be kind", "--address", address, stdin="One\n\nTwo\n")
    assert (ended.code, ended.out) == (0, "Hello wörld\nHello wörld\n")
    first, second = service.requests
    assert [(m.role, m.content) for m in first.chat.messages] == [("system", "Be kind"), ("user", "One")]
    assert first.session_id == ""
    assert [(m.role, m.content) for m in second.chat.messages] == [("user", "Two")]
    assert second.session_id == "s1"
    assert not second.HasField("received_tokens")


async def test_after_a_turn_that_broke_off_chat_goes_on_from_what_was_shown() -> None:
    broken = [*ANSWER[:2], SpecdecError("the verifier is gone")]
    scripts = iter([broken, ANSWER])
    async with serve_script(lambda _: next(scripts)) as (address, service):
        ended = await specdec("chat", "--address", address, stdin="One\nTwo\n")
    assert ended.code == 1
    assert "the verifier is gone" in ended.err
    assert ended.out == "Hello\nHello wörld\n"
    assert service.requests[1].session_id == "s1"
    assert service.requests[1].received_tokens == 2


async def test_ctrl_c_ends_the_command_and_the_work_on_the_server() -> None:
    async with (
        serve_script(lambda _: ANSWER[:2]) as (address, service),
        running("generate", "x", "--address", address) as process,
    ):
        assert process.stdout is not None
        assert await process.stdout.readexactly(5) == b"Hello"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            assert await process.wait() == 130
            await service.left.wait()


async def test_flags_that_cannot_be_read_are_refused_by_name() -> None:
    ids, bias = await asyncio.gather(
        specdec("generate", "1,two", "--token-ids"), specdec("generate", "x", "--logit-bias", "5")
    )
    assert (ids.code, bias.code) == (2, 2)
    assert "token_ids = '1,two': give integers" in ids.err
    assert "--logit-bias: '5': give ID=BIAS" in bias.err


async def test_several_answers_are_shown_one_after_another() -> None:
    script = [
        started(),
        GenerateResponse(started=Started(session_id="s2", index=1)),
        chunk(0, ("a", TOKEN_ORIGIN_BONUS)),
        chunk(0, ("x", TOKEN_ORIGIN_BONUS), index=1),
        chunk(1, ("b", TOKEN_ORIGIN_BONUS)),
        chunk(1, ("y", TOKEN_ORIGIN_BONUS), index=1),
        complete(),
    ]
    async with serve_script(lambda _: list(script)) as (address, _):
        ended = await specdec("generate", "x", "--n", "2", "--address", address)
    assert ended.out == "ab\nxy\n"
