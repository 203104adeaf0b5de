"""A GenerationService over real gRPC that answers from a script and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from protos import common_pb2, generation_pb2, generation_pb2_grpc
from protos.generation_pb2 import GenerateRequest, GenerateResponse
from specdec.core.errors import SpecdecError
from specdec.edge.errors import Context
from specdec.edge.server import GrpcServer

Script = Callable[[GenerateRequest], list[GenerateResponse | SpecdecError]]


class ScriptedGeneration(generation_pb2_grpc.GenerationServiceServicer):
    """After a list without `complete` or an error, the stream stays open until the client goes; then `left`
    is set."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[GenerateRequest] = []
        self.left = asyncio.Event()

    async def Info(self, request: common_pb2.InfoRequest, context: Context) -> generation_pb2.ServiceInfo:
        return generation_pb2.ServiceInfo(model_name="scripted", ready_verifiers=1)

    async def Generate(self, request: GenerateRequest, context: Context) -> None:
        self.requests.append(request)
        try:
            ended = False
            for step in self._script(request):
                if isinstance(step, SpecdecError):
                    raise step
                await context.write(step)
                ended = step.WhichOneof("event") == "complete"
            if not ended:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.set()
            raise


@asynccontextmanager
async def serve_script(script: Script) -> AsyncIterator[tuple[str, ScriptedGeneration]]:
    """The address, and the service."""
    service = ScriptedGeneration(script)
    register = partial(generation_pb2_grpc.add_GenerationServiceServicer_to_server, service)
    async with GrpcServer({"specdec.v1.GenerationService": register}, port=0, host="127.0.0.1") as server:
        await server.set_serving(True)
        yield f"127.0.0.1:{server.port}", service


def started(**fields: object) -> GenerateResponse:
    return GenerateResponse(started=generation_pb2.Started(session_id="s1", **fields))  # type: ignore[arg-type]


def chunk(offset: int, *tokens: tuple[str, int], index: int = 0) -> GenerateResponse:
    """tokens: text and origin, one each."""
    made = [generation_pb2.Token(id=i, text=text, origin=origin) for i, (text, origin) in enumerate(tokens)]  # type: ignore[arg-type]
    text = "".join(text for text, _ in tokens)
    return GenerateResponse(chunk=generation_pb2.Chunk(index=index, offset=offset, text=text, tokens=made))


def complete(**stats: object) -> GenerateResponse:
    draft_stats = generation_pb2.DraftStats(**stats)  # type: ignore[arg-type]
    usage = generation_pb2.Usage(prompt_tokens=3, completion_tokens=4)
    done = generation_pb2.Complete(
        finish_reason=generation_pb2.FINISH_REASON_LENGTH, usage=usage, draft_stats=draft_stats
    )
    return GenerateResponse(complete=done)
