from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec.lm.kv import KVSequence
from specdec.lm.network import BLOCK
from specdec.lm.runner import Runner, Segment
from tests.lm.served import close, fresh_logits, random_ids

SHARED, DRAFT = random_ids(BLOCK, seed=1), random_ids(4, seed=2)


@pytest.mark.scenario("B26")
def test_rows_that_cross_into_scattered_blocks_touch_nobody_elses(runners: dict[str, Runner]) -> None:
    """Slots that were taken to be consecutive were written into someone else's page, once a prefix cache had left the
    free ones scattered. Here two sessions share a prefix, and drafts of four cross the border of a block."""
    runner = runners["llama"]
    bystanders = _scatter(runner)
    before = [_content(runner, each) for each in bystanders]
    contexts = [np.concatenate([SHARED, random_ids(BLOCK - 2, seed)]) for seed in (3, 4)]
    sessions = []
    for context in contexts:
        session = runner.new_sequence()
        session.adopt(context)
        runner.forward([Segment(session, context[session.num_context : -1])])
        sessions.append(session)
    assert sessions[0].blocks[0] == sessions[1].blocks[0], "the prefix is not shared"
    segments = [Segment(s, np.append(c[-1:], DRAFT), wanted=5) for s, c in zip(sessions, contexts, strict=True)]
    logits = runner.forward(segments)
    assert any((np.diff(s.blocks) != 1).any() for s in sessions), "the free blocks were not scattered"
    for context, part in zip(contexts, logits, strict=True):
        for n, row in enumerate(part):
            assert close(row, fresh_logits(runner, np.append(context, DRAFT[:n])))
    for each, content in zip(bystanders, before, strict=True):
        assert np.array_equal(_content(runner, each), content)
    for each in (*bystanders, *sessions):
        each.discard()


def _scatter(runner: Runner) -> list[KVSequence]:
    """Sequences of one block each; every other one is gone again, and nothing else is free."""
    runner.pool = type(runner.pool)(runner._storage, 24 * BLOCK)
    sequences: list[KVSequence] = []
    while runner.pool.kv_free:
        sequences.append(runner.new_sequence())
        runner.forward([Segment(sequences[-1], random_ids(BLOCK - 1, seed=10 + len(sequences)))])
    for each in sequences[::2]:
        each.discard()
    return sequences[1::2]


def _content(runner: Runner, sequence: KVSequence) -> Any:
    storage: Any = runner._storage
    rows = sequence.rows(0, sequence.num_context)
    return storage.read(rows) if hasattr(storage, "read") else storage.data[..., rows, :].float().numpy().copy()
