from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from target_service.schedule import share_rows


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 128), st.integers(1, 80))
def test_rows_never_exceed_budget_or_need_none_is_wasted_and_the_first_gets_some(
    needs: list[int], budget: int, whole: int
) -> None:
    given_rows = share_rows(needs, budget, whole)
    assert all(0 <= rows <= need for rows, need in zip(given_rows, needs, strict=True))
    assert sum(given_rows) == min(budget, sum(needs))
    assert given_rows[0] > 0


def test_short_jobs_are_whole_beside_a_long_prefill() -> None:
    assert share_rows([5000, 9, 9, 1], 64, whole=17) == [45, 9, 9, 1]


def test_a_tree_is_not_cut_for_the_sake_of_equality() -> None:
    assert share_rows([9] * 10, 32, whole=9) == [9, 9, 9, 5, 0, 0, 0, 0, 0, 0]


def test_nobody_starves_under_endless_new_arrivals() -> None:
    """Least recently served first, as the engine orders them: a prefill goes on though short jobs never cease."""
    left, served = 1000, 0
    while left > 0:
        needs = [left, *[9] * 20]
        rows = share_rows(needs, 64, whole=9)
        left, served = left - rows[0], served + 1
    assert served <= 1000 // 9 + 1
    assert share_rows([], 8, 4) == []
