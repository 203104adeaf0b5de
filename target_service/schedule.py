"""Who gets how many rows of the next forward."""

from __future__ import annotations

from collections.abc import Sequence


def share_rows(needs: Sequence[int], budget: int, whole: int) -> list[int]:
    """Rows for each job, in the order given (who has waited longest comes first), their sum at most `budget`.

    A job first gets what it needs up to an equal share of the budget, but no less than `whole`, the rows of a
    whole verification: short jobs are served at once, however long a prefill stands before them, and a tree
    is not cut for the sake of equality. What is left goes to the jobs in the same order. The first job always
    gets something, so if those that got nothing come first next time, nobody starves."""
    if not needs:
        return []
    assert budget > 0 and min(needs) > 0, "a job without rows, or no budget"
    share = max(budget // len(needs), whole)
    given = []
    left = budget
    for need in needs:
        given.append(min(need, share, left))
        left -= given[-1]
    for i, need in enumerate(needs):
        more = min(need - given[i], left)
        given[i] += more
        left -= more
    return given
