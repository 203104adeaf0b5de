"""The context rule, tokens[offset:] = token_ids, as the drafter keeps it."""

from __future__ import annotations

import numpy as np
import pytest

from draft_service.session import DraftSession
from specdec.core.errors import InvalidArgument
from specdec.core.sampling import SamplingParams
from specdec.edge.messages import DraftRequest, OpenSession, StaleContext
from tests.draft_service.jobs import ids, random_ids


def send(session: DraftSession, offset: int, values: list[int]) -> StaleContext | None:
    return session.advance(DraftRequest(cycle=1, offset=offset, token_ids=ids(values), num_draft_tokens=1))


def test_one_message_is_prefill_continuation_and_rollback() -> None:
    session = DraftSession()
    assert send(session, 0, [1, 2, 3]) is None
    assert send(session, 3, [4, 5]) is None
    assert session.context.tolist() == [1, 2, 3, 4, 5]
    assert send(session, 2, [9]) is None
    assert session.context.tolist() == [1, 2, 9]
    assert send(session, 1, []) is None
    assert session.context.tolist() == [1]


def test_a_gap_is_stale_and_changes_nothing() -> None:
    session = DraftSession()
    assert send(session, 5, [1]) == StaleContext(0)
    send(session, 0, [7, 8])
    assert send(session, 3, [1]) == StaleContext(2)
    assert session.context.tolist() == [7, 8]
    assert session.context.dtype == np.uint32


def test_any_sequence_of_messages_equals_list_slicing() -> None:
    session, model, rng = DraftSession(), list[int](), np.random.default_rng(3)
    for step in range(300):
        offset, values = int(rng.integers(0, len(model) + 3)), random_ids(step, int(rng.integers(0, 5)))
        stale = send(session, offset, values)
        if offset > len(model):
            assert stale == StaleContext(len(model))
        else:
            assert stale is None
            model[offset:] = values
        assert session.context.tolist() == model


def test_a_context_given_to_a_drafter_does_not_change_under_it() -> None:
    session = DraftSession()
    send(session, 0, [1, 2, 3])
    given = session.context
    send(session, 1, [8, 8, 8])
    assert given.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        given[0] = 5


def opening(session_id: str, seed: int) -> OpenSession:
    return OpenSession(session_id, SamplingParams(), seed, 0)


def test_a_new_turn_replaces_the_opening_and_keeps_the_context() -> None:
    session = DraftSession()
    session.reopen(opening("a", 1))
    send(session, 0, [1, 2])
    session.reopen(opening("a", 2))
    assert session.opening == opening("a", 2) and session.context.tolist() == [1, 2]


def test_a_stream_belongs_to_one_session() -> None:
    session = DraftSession()
    session.reopen(opening("a", 1))
    with pytest.raises(InvalidArgument, match=r"open.session_id = 'b'.*'a'"):
        session.reopen(opening("b", 1))
    assert session.opening == opening("a", 1)
