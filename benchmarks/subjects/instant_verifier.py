"""A verifier without a model: every verification is the same token, after a given time. What the coordinator can do
shows beside it, not what a model does.

python -m benchmarks.subjects.instant_verifier MODEL_FOLDER PORT

The seconds of a verification are those of the file named by INSTANT_SECONDS_FILE, read again every quarter second."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.tokenizer import TextCodec
from protos import common_pb2, target_pb2, target_pb2_grpc
from specdec.edge.info_codec import encode_info
from specdec.edge.messages import ReplicaInfo
from specdec.edge.server import GrpcServer

TOKEN = (7).to_bytes(4, "little")


class InstantVerifier(target_pb2_grpc.TargetServiceServicer):
    def __init__(self, codec: TextCodec, pace: Path) -> None:
        self._codec = codec
        self._pace = pace
        self.seconds = 0.0

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            self.seconds = float(self._pace.read_text() or 0)
            await asyncio.sleep(0.25)

    async def Info(self, request: Any, context: Any) -> common_pb2.ReplicaInfo:
        return encode_info(
            ReplicaInfo(
                role="target",
                replica_id=f"instant-{os.getpid()}",
                vocab_size=self._codec.vocab_size,
                tokenizer_hash=self._codec.tokenizer_hash,
                model_fingerprint="instant",
                model_name="instant",
                dtype="float32",
                max_context=1 << 20,
                max_nodes=64,
                token_budget=1 << 16,
                eos_ids=(),
            )
        )

    async def Verify(self, requests: AsyncIterator[target_pb2.VerifyRequest], context: Any) -> None:
        async for request in requests:
            seconds = self.seconds
            if seconds:
                await asyncio.sleep(seconds)
            nodes = 1 + len(request.draft_token_ids) // 4
            timing = common_pb2.Timing(compute_us=round(1e6 * seconds), batch_size=1, batch_rows=nodes)
            verification = target_pb2.Verification(drawn=TOKEN * nodes)
            load = common_pb2.Load(kv_free=1 << 20, kv_total=1 << 20)
            await context.write(
                target_pb2.VerifyResponse(cycle=request.cycle, verification=verification, timing=timing, load=load)
            )


async def serve(folder: str, port: int) -> None:
    service = InstantVerifier(TextCodec.load(folder), Path(os.environ["INSTANT_SECONDS_FILE"]))
    register = partial(target_pb2_grpc.add_TargetServiceServicer_to_server, service)
    async with GrpcServer({"specdec.v1.TargetService": register}, host="127.0.0.1", port=port) as server:
        await server.set_serving(True)
        await service.follow()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
