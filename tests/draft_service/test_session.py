"""The context rule, tokens[offset:] = token_ids, as the drafter keeps it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draft_service.session import KEPT_ROWS, DraftSession
from specdec.core.errors import InvalidArgument
from specdec.core.features import NO_FEATURES, FeatureRows
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


def rows(offset: int, *names: int) -> FeatureRows:
    return FeatureRows(offset, len(names), b"".join(bytes([name] * 3) for name in names))


def tell(session: DraftSession, offset: int, values: list[int], features: FeatureRows | None) -> None:
    request = DraftRequest(cycle=1, offset=offset, token_ids=ids(values), num_draft_tokens=1, features=features)
    assert session.advance(request, feature_bytes=3) is None


def test_features_follow_the_context_and_later_ones_replace() -> None:
    session = DraftSession()
    tell(session, 0, [1, 2, 3, 4], None)
    assert session.features == NO_FEATURES
    tell(session, 4, [5], rows(1, 1, 2, 3))
    tell(session, 5, [6, 7], rows(4, 4, 5))
    assert session.features == rows(1, 1, 2, 3, 4, 5)
    tell(session, 7, [8], rows(5, 55, 6))
    assert session.features == rows(1, 1, 2, 3, 4, 55, 6)


@pytest.mark.parametrize(
    ("offset", "values", "left"),
    [
        (5, [6, 7], rows(1, 1, 2, 3, 4, 5)),  # the same again
        (3, [4, 9, 9, 9], rows(1, 1, 2, 3)),  # changed at position 4
        (5, [], rows(1, 1, 2, 3)),  # shorter: its last token was never seen
        (1, [9, 9, 9], NO_FEATURES),
    ],
)
def test_features_of_what_changed_are_dropped(offset: int, values: list[int], left: FeatureRows) -> None:
    session = DraftSession()
    tell(session, 0, [1, 2, 3, 4, 5, 6, 7], rows(1, 1, 2, 3, 4, 5))
    tell(session, offset, values, None)
    assert (session.features.rows, session.features.data) == (left.rows, left.data)


def test_features_are_bounded_and_kept_for_none_that_reads_none() -> None:
    session = DraftSession()
    for length in range(2, KEPT_ROWS + 50):
        tell(session, length - 2, [1, 1], rows(length - 2, length % 200))
        assert session.features.end == length - 1
    assert session.features.rows == KEPT_ROWS
    unread = DraftSession()
    unread.advance(DraftRequest(1, 0, ids([1, 2, 3]), 1, features=rows(0, 1, 2)))
    assert unread.features == NO_FEATURES


def test_another_drafter_begins_without_features() -> None:
    session = DraftSession()
    session.reopen(opening("a", 1))
    tell(session, 0, [1, 2, 3], rows(0, 1, 2))
    session.reopen(opening("a", 2))
    assert session.features == rows(0, 1, 2)
    session.reopen(replace(opening("a", 2), drafter="eagle"))
    assert session.features == NO_FEATURES


def test_rows_of_another_size_are_refused_by_name_and_change_nothing() -> None:
    session = DraftSession()
    request = DraftRequest(1, 0, ids([1, 2, 3]), 1, features=rows(0, 1, 2))
    with pytest.raises(InvalidArgument, match=r"features = 'rows of 3 bytes'.*rows of 4"):
        session.advance(request, feature_bytes=4)
    assert not len(session.context)
