"""What a verifier's engine shares with others through the KV tier: the blocks that its sessions have filled, and, for a
session that comes from elsewhere, those that are there already."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from specdec.core.tree import Ids
from specdec.edge.batcher import MicroBatcher
from specdec.lm.exchange import BlockExchange, BlockKey
from specdec.lm.network import BLOCK
from target_service.kv_tier.fetching import Content
from target_service.kv_tier.tier import KVTier
from target_service.schedule import Schedule
from target_service.session import TargetSession, VerifyJob, VerifyResult

LONGEST_FETCH = 2.0  # seconds
PAUSE = 0.02  # seconds between two tries
HAND_OVER = 2.0  # seconds that a drain waits for the last blocks

Batcher = MicroBatcher[VerifyJob, VerifyResult]

_log = logging.getLogger(__name__)


class KVSharing:
    """found: told how many context tokens were brought in."""

    def __init__(
        self,
        tier: KVTier,
        exchange: BlockExchange,
        schedule: Schedule,
        found: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self._tier = tier
        self._exchange = exchange
        self._schedule = schedule
        self._found = found

    def keep(self, session: TargetSession) -> None:
        """Offers the blocks that the session has filled. On the compute thread."""
        self._tier.keep(session.sequence.digests, session.sequence.key, self._exchange.read)

    async def bring(self, batcher: Batcher, context: Ids, salt: bytes = b"") -> int:
        """Takes in what the store has of a context that begins here, if that is faster than to compute it. Returns how
        many tokens."""
        if len(context) <= BLOCK:
            return 0
        keys, held = await batcher.call(partial(self._looked_up, context, salt))
        lacking = keys[held:]
        within = self._worth(len(lacking), held)
        if not within:
            return 0
        contents = await self._tier.fetch(lacking, within)
        if not contents:
            return 0
        installed = await batcher.call(partial(self._installed, keys[: held + len(contents)], contents))
        self._found(installed)
        return installed

    async def hand_over(self, batcher: Batcher, sessions: Callable[[], Iterable[TargetSession]]) -> None:
        """Stores what is missing of all sessions, as far as HAND_OVER seconds allow."""
        until = time.monotonic() + HAND_OVER
        stored = False
        while not stored and (left := until - time.monotonic()) > 0:
            kept = await batcher.call(partial(self._keep_all, sessions))
            stored = await self._tier.flush(left) and kept
            if not stored:
                await asyncio.sleep(PAUSE)
        _log.info("handing over: %s", "all KV is stored" if stored else "the store was too slow for all KV")

    def _worth(self, blocks: int, held: int) -> float:
        """Seconds that a fetch of so many blocks may take, 0: computing them is faster."""
        if not blocks or self._tier.writes.resting:
            return 0.0
        computing = self._schedule.prefill_seconds(blocks * BLOCK, held * BLOCK)
        fetching = self._tier.fetching.pace.seconds(blocks)
        return min(LONGEST_FETCH, computing) if fetching < computing else 0.0

    def _looked_up(self, context: Ids, salt: bytes) -> tuple[list[BlockKey], int]:
        keys = self._exchange.chain(context[:-1], salt)  # the root is computed in any case
        return keys, self._exchange.held([key.digest for key in keys])

    def _installed(self, keys: list[BlockKey], contents: list[Content]) -> int:
        return BLOCK * self._exchange.install([key.digest for key in keys], contents)

    def _keep_all(self, sessions: Callable[[], Iterable[TargetSession]]) -> bool:
        """Whether the queue took all that was missing."""
        for session in sessions():
            self.keep(session)
        return not any(self._tier.writes.lacking(session.sequence.digests) for session in sessions())
