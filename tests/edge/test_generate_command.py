"""`specdec generate` and `specdec chat` as a user runs them: processes of their own, against a scripted coordinator."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from protos.generation_pb2 import (
    TOKEN_ORIGIN_ACCEPTED,
    TOKEN_ORIGIN_BONUS,
    GenerateRequest,
    GenerateResponse,
)
from specdec.core.errors import InvalidArgument, SpecdecError
from tests.edge.scripted_generation import chunk, complete, serve_script, started

ANSWER: list[GenerateResponse | SpecdecError] = [
    started(seed=9),
    chunk(0, ("Hel", TOKEN_ORIGIN_ACCEPTED), ("lo", TOKEN_ORIGIN_BONUS)),
    chunk(2, (" wörld", TOKEN_ORIGIN_BONUS)),
    complete(cycles=2, draft_tokens=4, accepted_tokens=1),
]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


async def specdec(*arguments: str, stdin: str = "") -> Ended:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "specdec", *arguments, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        out, err = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


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
