"""One choice of one request: what was stored is sent again, the rest is generated, the end is told."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from coordinator.config import CoordinatorConfig
from coordinator.cycle import Cycle
from coordinator.drafting import Drafting, DraftLimits
from coordinator.drift import DriftWatch
from coordinator.experience import Experience, Learning
from coordinator.features import SessionFeatures
from coordinator.generation import Generation
from coordinator.opening import Opened
from coordinator.pool import Pool
from coordinator.responses import Writer, chunk, complete, replayed, started
from coordinator.served import ServedDrafters
from coordinator.sources import Sources
from coordinator.stats import Stats
from coordinator.stopping import TurnOutput
from coordinator.store.protocol import SessionStore
from coordinator.tokenizer import TextCodec
from coordinator.verifying import Verifying, VerifyLimits
from protos import generation_pb2 as pb
from specdec.core.errors import SpecdecError
from specdec.edge.messages import OpenSession
from specdec.edge.telemetry import CoordinatorMetrics, Telemetry

log = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all requests of a coordinator share."""

    config: CoordinatorConfig
    codec: TextCodec
    store: SessionStore
    targets: Pool
    drafters: Pool
    served: ServedDrafters
    telemetry: Telemetry
    metrics: CoordinatorMetrics
    drift: DriftWatch
    experience: Experience


class Choice:
    """max_context, max_k: what every verifier takes; trace: traceparent of the request's span; began, until: when the
    request came and when it must be over, by the loop's clock; cache_salt: only sessions of one salt share cached keys
    and values. sent: output tokens given to the client so far; finish: None until the turn has ended."""

    def __init__(
        self,
        wiring: Wiring,
        opened: Opened,
        index: int,
        writer: Writer,
        *,
        max_context: int,
        max_k: int,
        trace: str,
        began: float,
        until: float,
        cache_salt: bytes = b"",
    ) -> None:
        self.record = opened.record
        self.sent = 0
        self._wiring = wiring
        self._received = opened.received
        self._index = index
        self._writer = writer
        self._max_k = max_k
        self._trace = trace
        self._began = began
        self._until = until
        self._cache_salt = cache_salt
        self._stop = ""
        # Where verifiers have become smaller since the turn began, what it has is kept all the same.
        room = max(max_context, len(self.record.token_ids))
        prompt = self.record.token_ids[: self.record.turn_start]
        self._output = TurnOutput(self.record.turn, wiring.codec.pieces, prompt, room)

    @property
    def finish(self) -> str | None:
        return self._output.finish

    async def run(self) -> None:
        """Streams the choice to its end. However it ends, the session can be taken up again at once."""
        ended = False
        try:
            await self._writer.write(started(self.record, self._index))
            await self._replay()
            stats, traffic = Stats(), (0, 0)
            if self._output.finish is None:
                with self._wiring.experience.turn(self.record.turn) as learning:
                    stats, traffic = await self._generate(learning)
            assert self._output.finish is not None, "a generation that returns has ended its turn"
            usage = self._usage(stats)
            self._measure(usage, stats, self._output.finish)
            message = stats.message(*traffic)
            message.lossy = self.record.turn.lossy
            await self._writer.write(complete(self._index, self._output.finish, self._stop, usage, message))
            ended = True
        finally:
            # A turn that ended gave its lease back with its last commit; a replayed one, or a broken one, must.
            if not ended or self.record.finish is not None:
                await self._release()

    async def _replay(self) -> None:
        if not len(self.record.output_ids):
            return
        emission = self._output.accept(self.record.output_ids)
        self._stop = emission.stop
        if len(emission.token_ids) > self._received:
            await self._writer.write(replayed(emission, self._index, self._received))
            self.sent = len(emission.token_ids) - self._received

    async def _generate(self, learning: Learning) -> tuple[Stats, tuple[int, int]]:
        """What was counted, and the bytes sent and received."""
        wiring, record, config = self._wiring, self.record, self._wiring.config
        vocab_size = wiring.codec.vocab_size
        if record.turn.lossy:
            wiring.metrics.lossy_turns.add()
        fixed_k = config.num_draft_tokens if record.turn.num_draft_tokens is None else record.turn.num_draft_tokens
        features = SessionFeatures(wiring.served, record.turn.drafter)
        if fixed_k is None:
            named = record.turn.drafter is not None
            features.wanted = learning.wants_features(features.readers(), len(record.token_ids), named=named)
        else:
            features.wanted = fixed_k > 0
        turn = record.turn
        first = OpenSession(record.session_id, turn.params, turn.seed, record.turn_start, cache_salt=self._cache_salt)
        draft_limits = DraftLimits(config.draft_timeout, config.support, vocab_size, self._until)
        open_drafting = partial(Drafting, wiring.drafters, record.turn, first, draft_limits, features)
        sources = Sources(wiring.served, record.turn.drafter, open_drafting, features)
        verify_limits = VerifyLimits(config.verify_timeout, config.failover_timeout, vocab_size, self._until)
        verifying = Verifying(wiring.targets, record.turn, first, record.fingerprint, verify_limits, features)
        generation = Generation(
            record,
            self._output,
            sources,
            verifying,
            features,
            wiring.store,
            self._emit,
            wiring.telemetry,
            wiring.metrics,
            trace=self._trace,
            fixed_k=fixed_k,
            max_k=self._max_k,
            heartbeat=config.session_lease / HEARTBEATS_PER_LEASE,
            learning=learning,
        )
        generation.stats.started = self._began
        await generation.run()
        sent = sources.bytes_sent + verifying.bytes_sent
        received = sources.bytes_received + verifying.bytes_received
        return generation.stats, (sent, received)

    async def _emit(self, cycle: Cycle) -> None:
        record = self.record
        if not record.turn.lossy:
            self._wiring.drift.observe(cycle, record.turn.params.greedy)
        await self._writer.write(chunk(cycle, self._index, record.turn_start, record.turn.params.logprobs))
        self.sent += len(cycle.emission.token_ids)
        self._stop = cycle.emission.stop

    def _usage(self, stats: Stats) -> pb.Usage:
        prompt_tokens = self.record.turn_start
        return pb.Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self._output.num_tokens,
            cached_tokens=max(0, min(stats.cached_tokens, prompt_tokens)),
        )

    def _measure(self, usage: pb.Usage, stats: Stats, finish: str) -> None:
        metrics = self._wiring.metrics
        if stats.cycles:  # a turn that is only sent again has ended before
            metrics.finishes.add(reason=finish)
        metrics.prompt_tokens.add(usage.prompt_tokens)
        metrics.cached_tokens.add(usage.cached_tokens)
        if stats.emitted_tokens:
            metrics.time_to_first_token.record(stats.first_token - stats.started)
        if stats.emitted_tokens > 1:
            metrics.time_per_output_token.record((stats.last_token - stats.first_token) / (stats.emitted_tokens - 1))

    async def _release(self) -> None:
        """The record stays for the next turn or a resume; failing to say so only delays them by the lease."""
        try:
            await self._wiring.store.release(self.record.session_id, self.record.epoch)
        except SpecdecError as error:
            log.warning("session %s not released: %s", self.record.session_id, error)
