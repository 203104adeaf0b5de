from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from draft_service.training.rows import Rows, chosen_rows
from draft_service.training.setting import Setting


def test_rows_hold_every_token_once_and_judge_what_is_learned(setting: Setting, rows: Callable[..., Rows]) -> None:
    made = rows(24, 2)
    batch = made.batch(range(len(made) - 1))
    ids = np.concatenate([setting.documents[i].ids for i in setting.train])
    flat = batch.ids[:, :24].reshape(-1)
    assert flat.tolist() == ids[: len(flat)].tolist()
    # A position is judged where the next token of the same document is one to be learned.
    judged = np.concatenate([np.append(setting.documents[i].learned[1:], False) for i in setting.train])
    assert batch.judged[:, :24].reshape(-1).tolist() == judged[: len(flat)].tolist()
    assert made.num_judged(range(len(made) - 1)) == int(judged[: len(flat)].sum())


def test_a_position_sees_only_its_own_document_s_past(rows: Callable[..., Rows]) -> None:
    batch = rows(64, 1).batch([0, 1])
    visible = batch.visible()[:, 0]
    for row, documents in enumerate(batch.documents[:, :64].tolist()):
        for t in range(64):
            expected = [s <= t and documents[s] == documents[t] for s in range(64)]
            assert visible[row, t].tolist() == expected


def test_beyond_the_last_row_nothing_is_judged(rows: Callable[..., Rows]) -> None:
    made = rows(24, 5)
    batch = made.batch([len(made) - 1])
    assert batch.ids.shape == (1, 29)
    assert not batch.judged[0, 24:].any()
    assert not batch.together(1)[0, -1]


def test_every_epoch_reads_every_row_once_in_another_order() -> None:
    read = [row for step in range(14) for row in chosen_rows(3, step, 4, 7)]
    epochs = [read[i : i + 7] for i in range(0, 56, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert chosen_rows(3, 5, 4, 7) == read[20:24]
    assert read != [row for step in range(14) for row in chosen_rows(4, step, 4, 7)]


def test_positions_count_from_the_row_s_start(rows: Callable[..., Rows]) -> None:
    assert torch.equal(rows(24, 1).batch([0, 2]).position_ids, torch.arange(24).expand(2, -1))
