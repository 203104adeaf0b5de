"""What goes to the client: protos made of blocks, one writer per call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from coordinator.cycle import Cycle
from coordinator.session import SessionRecord
from coordinator.stopping import Emission
from protos import generation_pb2 as pb
from specdec.core.draft import Draft
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.codec import encode_params

FINISH = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}


Used = Callable[[int], None]


class Writer:
    """Several choices share one call, and a call takes one write at a time. used: told of output tokens, those that a
    resume sends again left out."""

    def __init__(self, call: Any, used: Used = lambda tokens: None) -> None:
        self._call = call
        self._used = used
        self._lock = asyncio.Lock()

    def time_remaining(self) -> float:
        """Seconds until the caller's deadline."""
        left = self._call.time_remaining()
        return math.inf if left is None else float(left)

    async def write(self, event: pb.Started | pb.Chunk | pb.Complete) -> None:
        """Waits for a client that reads slowly. Raises grpc.aio.BaseError where it has gone."""
        if isinstance(event, pb.Chunk) and event.HasField("timing"):
            self._used(len(event.tokens))
        response = pb.GenerateResponse()
        getattr(response, type(event).__name__.lower()).CopyFrom(event)
        async with self._lock:
            await self._call.write(response)


def started(record: SessionRecord, index: int) -> pb.Started:
    turn = record.turn
    return pb.Started(
        session_id=record.session_id,
        epoch=record.epoch,
        seed=turn.seed,
        prompt_tokens=record.turn_start,
        params=encode_params(turn.params),
        max_tokens=turn.max_tokens,
        verification=turn.rule,
        drafter=turn.drafter or "auto",
        index=index,
    )


def chunk(cycle: Cycle, index: int, turn_start: int, logprobs: int | None) -> pb.Chunk:
    """The tokens of one cycle."""
    last = pb.TOKEN_ORIGIN_BONUS if cycle.acceptance.bonus else pb.TOKEN_ORIGIN_RECOVERED
    tokens = []
    for i, (token_id, text) in enumerate(zip(cycle.emission.token_ids, cycle.emission.texts, strict=True)):
        origin = pb.TOKEN_ORIGIN_ACCEPTED if i < cycle.num_accepted else last
        token = pb.Token(id=token_id, text=text, origin=origin)
        if logprobs is not None:
            judged_at = cycle.acceptance.nodes[i - 1] if i else 0
            add_logprobs(token, cycle.drafted.draft, cycle.verified.verification, judged_at)
        tokens.append(token)
    return pb.Chunk(
        index=index,
        offset=cycle.base - turn_start,
        text=cycle.emission.text,
        tokens=tokens,
        timing=_timing(cycle),
        drafter=cycle.judged_drafter,
        num_draft_tokens=cycle.num_draft_tokens,
        draft_depth=int(cycle.drafted.draft.tree.depths.max()),
        num_accepted_tokens=cycle.num_accepted,
        exact_alphas=cycle.alphas,
    )


def _timing(cycle: Cycle) -> pb.CycleTiming:
    draft, verify = cycle.drafted, cycle.verified
    return pb.CycleTiming(
        cycle_us=int(cycle.seconds * 1e6),
        draft_us=int(draft.seconds * 1e6),
        draft_queue_us=draft.timing.queue_us,
        draft_compute_us=draft.timing.compute_us,
        verify_us=int(verify.seconds * 1e6),
        verify_queue_us=verify.timing.queue_us,
        verify_compute_us=verify.timing.compute_us,
    )


def replayed(emission: Emission, index: int, received: int) -> pb.Chunk:
    """Stored tokens behind the first `received`, sent again."""
    pairs = zip(emission.token_ids[received:], emission.texts[received:], strict=True)
    tokens = [pb.Token(id=i, text=text, origin=pb.TOKEN_ORIGIN_REPLAYED) for i, text in pairs]
    return pb.Chunk(index=index, offset=received, text="".join(emission.texts[received:]), tokens=tokens)


def complete(index: int, finish: str, stop: str, usage: pb.Usage, stats: pb.DraftStats) -> pb.Complete:
    return pb.Complete(index=index, finish_reason=FINISH[finish], stop=stop, usage=usage, draft_stats=stats)


def add_logprobs(token: pb.Token, draft: Draft, verification: Verification, node: int) -> None:
    """Raw log-probabilities at the node whose law decided this token."""
    logprobs = verification.logprobs
    assert logprobs is not None, "log-probabilities were asked for and checked on arrival"
    token.logprob = float(logprobs.drawn[node])
    if verification.form is VerifyForm.PQ and draft.tree.children[node]:
        inner = draft.tree.inner_nodes.index(node)
        (found,) = np.nonzero(verification.laws[inner].ids == token.id)
        if found.size:
            token.logprob = float(logprobs.support[inner][found[0]])
    for token_id, value in zip(logprobs.top_ids[node].tolist(), logprobs.top[node].tolist(), strict=True):
        token.top_logprobs.add(id=token_id, logprob=value)
