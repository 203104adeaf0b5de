"""The suffix drafter: a session's own context and earlier outputs of the replica, each within its bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.config import DraftConfig
from draft_service.drafters import DraftModel
from draft_service.drafters.suffix import MOST_SALTS, SMALLEST, SuffixDrafter, build
from draft_service.session import DraftSession
from specdec.core.draft import DraftKind
from specdec.core.sampling import SamplingParams
from specdec.edge.messages import OpenSession
from specdec.edge.telemetry import ReplicaMetrics
from tests.draft_service.jobs import GREEDY, draft_one, job, random_ids, tokens

OUTPUT = [50, 51, 52, 53, 54, 55, 56, 57]


def drafter(shared_tokens: int = 4096) -> SuffixDrafter:
    return SuffixDrafter(DraftModel(), shared_tokens)


def salted(salt: bytes) -> DraftSession:
    session = DraftSession()
    session.reopen(OpenSession("s", GREEDY, 0, 2, cache_salt=salt))
    return session


def told(to: SuffixDrafter, prompt: list[int], output: list[int], session: DraftSession | None = None) -> None:
    """One session with this output, closed."""
    session = session or DraftSession()
    draft_one(to, job([*prompt, *output], 4, session=session, turn_start=len(prompt)))
    to.close(session)


def test_outputs_are_known_to_sessions_of_the_same_salt_only() -> None:
    """What one caller was told must not be guessed for another: how fast it comes would tell."""
    suffix, asking = drafter(), [1, 2, *OUTPUT[:3]]
    told(suffix, [9, 8], OUTPUT, salted(b"one"))
    for salt, expected in ((b"one", OUTPUT[3:6]), (b"two", []), (b"", [])):
        assert tokens(draft_one(suffix, job(asking, 3, session=salted(salt)))) == expected


def test_so_many_salts_have_outputs_kept_the_latest_used() -> None:
    suffix, asking = drafter(), [1, 2, *OUTPUT[:3]]
    for i in range(MOST_SALTS + 1):
        told(suffix, [9, 8], OUTPUT, salted(bytes([i])))
    found = [bool(tokens(draft_one(suffix, job(asking, 3, session=salted(bytes([i])))))) for i in range(MOST_SALTS + 1)]
    assert found == [False] + [True] * MOST_SALTS


@pytest.mark.parametrize("kind", [DraftKind.CHOSEN, DraftKind.SAMPLED])
def test_a_draft_copies_the_context_and_is_chosen_whatever_was_asked(kind: DraftKind) -> None:
    draft = draft_one(drafter(), job([5, 6, 7, 8, 9, 5, 6], 3, SamplingParams(), kind=kind, support=8))
    assert tokens(draft) == [7, 8, 9]
    assert draft.kind is DraftKind.CHOSEN and not draft.coupled and draft.drafter == "suffix"
    assert 0 < draft.score < 3
    assert drafter().model.tree


def test_an_output_is_known_to_other_sessions_once_its_session_has_closed() -> None:
    suffix, session = drafter(), DraftSession()
    asking = [1, 2, *OUTPUT[:3]]
    draft_one(suffix, job([9, 8, *OUTPUT], 4, session=session, turn_start=2))
    assert tokens(draft_one(suffix, job(asking, 3))) == []
    suffix.close(session)
    assert tokens(draft_one(suffix, job(asking, 3))) == OUTPUT[3:6]


def test_an_output_is_known_once_the_next_turn_begins() -> None:
    suffix, session = drafter(), DraftSession()
    context = [9, 8, *OUTPUT]
    draft_one(suffix, job(context, 4, session=session, turn_start=2))
    draft_one(suffix, job([*context, 7, 7, 3], 4, session=session, turn_start=12))
    assert tokens(draft_one(suffix, job([1, *OUTPUT[:2]], 2))) == OUTPUT[2:4]


def test_prompts_are_nobodys_business_but_their_sessions() -> None:
    suffix = drafter()
    told(suffix, [*range(100, 140)], OUTPUT)
    assert tokens(draft_one(suffix, job([1, 100, 101, 102], 4))) == []


def test_without_sharing_a_session_knows_itself_alone() -> None:
    suffix = drafter(0)
    told(suffix, [1, 2], OUTPUT)
    assert tokens(draft_one(suffix, job([1, *OUTPUT[:3]], 4))) == []
    assert tokens(draft_one(suffix, job([3, 4, 5, 3, 4], 1))) == [5]


def test_the_oldest_outputs_make_room_for_new_ones() -> None:
    suffix = drafter(SMALLEST)
    told(suffix, [1], OUTPUT)
    for i in range(20):
        told(suffix, [1], [*range(1000 + 100 * i, 1100 + 100 * i)])
    assert tokens(draft_one(suffix, job([2, *OUTPUT[:3]], 2))) == []
    assert tokens(draft_one(suffix, job([2, 2900, 2901], 2))) == [2902, 2903]


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12), seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_context_that_grows_shrinks_and_changes_is_drafted_for_as_if_it_were_new(
    lengths: list[int], seed: int
) -> None:
    suffix, session = drafter(0), DraftSession()
    for i, length in enumerate(lengths):
        context = random_ids(seed + i // 2, 60, vocab=3)[:length]
        draft = draft_one(suffix, job(context, 6, session=session))
        fresh = draft_one(drafter(0), job(context, 6))
        assert (tokens(draft), draft.tree.parents.tolist(), draft.score) == (
            tokens(fresh),
            fresh.tree.parents.tolist(),
            fresh.score,
        )


def test_a_long_context_outgrows_its_index_without_loss() -> None:
    suffix, session = drafter(0), DraftSession()
    context = [7, 8, 9, *range(100, 100 + 3 * SMALLEST)]
    for end in range(10, len(context), 400):
        draft_one(suffix, job(context[:end], 2, session=session))
    assert tokens(draft_one(suffix, job([*context, 7, 8], 1, session=session))) == [9]


def test_nothing_is_drafted_behind_an_id_that_ends_the_turn() -> None:
    params = replace(GREEDY, end_ids=(8,))
    assert tokens(draft_one(drafter(), job([5, 6, 7, 8, 9, 5, 6], 4, params))) == [7, 8]


@pytest.mark.scenario("B39")
@pytest.mark.parametrize("k", [1, 2, 5, 16])
def test_never_more_nodes_than_were_asked_for(k: int) -> None:
    suffix = drafter()
    for seed in range(30):
        told(suffix, [1], random_ids(seed, 60, vocab=3))
        assert len(tokens(draft_one(suffix, job(random_ids(seed + 1, 30, vocab=3), k)))) <= k


@pytest.mark.parametrize(("options", "shared"), [({}, True), ({"suffix_shared": False}, False)])
def test_the_configuration_says_what_is_shared(options: dict[str, Any], shared: bool, metrics: ReplicaMetrics) -> None:
    suffix = build(DraftConfig(drafters=("suffix",), **options), metrics, None)
    told(suffix, [1, 2], OUTPUT)
    assert bool(tokens(draft_one(suffix, job([3, *OUTPUT[:3]], 2)))) == shared


def test_closing_an_unknown_session_is_nothing() -> None:
    drafter().close(DraftSession())
