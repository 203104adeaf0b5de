"""A long silence ends no stream: servers allow pings as often as our clients send them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from specdec.core.sampling import SamplingParams
from specdec.edge import channel, server
from tests.fakes.scripted import Request
from tests.fakes.stack import scripted_target, stack, until
from tests.fakes.tables import MARKOV_5, letters_folder
from tests.reference import reference_tokens

PING = 1.0  # seconds; gRPC sends none more often
SILENCE = 4.5 * PING  # a server that minds ends the connection with the third ping


@pytest.mark.scenario("B100")
async def test_a_prefill_that_outlasts_many_pings_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B100: with the shipped intervals scaled down by twenty. An option that gRPC does not know would show here."""
    scale = channel.KEEPALIVE_MS / 1000 / PING
    monkeypatch.setattr(channel, "KEEPALIVE_MS", round(channel.KEEPALIVE_MS / scale))
    monkeypatch.setattr(server, "MIN_PING_INTERVAL_MS", round(channel.MIN_PING_INTERVAL_MS / scale))
    clock = asyncio.get_running_loop().time
    folder = letters_folder(tmp_path / "m", 5)

    async def prefill(request: Request, reply: Any) -> Any:
        if request.cycle == 1:
            start = clock()
            await until(lambda: clock() - start > SILENCE)
        return reply

    async with stack(folder, [scripted_target(MARKOV_5, folder, script=prefill)]) as s:
        answer = await s.generate(token_ids=[1], max_tokens=20, seed=3)
        assert s.metric("specdec_reopens_total") == 0
    assert answer.ids == reference_tokens(MARKOV_5.logits, [1], SamplingParams(), 3, 20)
