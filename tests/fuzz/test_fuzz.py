"""The short form; `python -m tests.fuzz` tries 10,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec.edge.client import Client
from tests.end_to_end.clusters import PROMPT, cluster, generated, tiny_folder
from tests.fuzz.campaign import campaign

INPUTS = 900


@pytest.mark.timeout(240)
async def test_no_input_crashes_hangs_or_goes_without_a_typed_answer(tmp_path: Path) -> None:
    fields = {"token_ids": PROMPT, "max_tokens": 20, "temperature": 0.0}
    async with (
        cluster(tiny_folder(tmp_path / "model"), tmp_path / "logs") as running,
        Client(running.address) as client,
    ):
        before, _ = await generated(client, **fields)
        found = await campaign({m.process.name: m.address for m in running.members}, INPUTS)
        after, _ = await generated(client, **fields)
    assert found.faults == []
    assert found.answers.total() == INPUTS
    assert {"answered", "INVALID_ARGUMENT INVALID_ARGUMENT"} <= set(found.answers)
    assert before == after
