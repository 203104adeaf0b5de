from __future__ import annotations

import pytest

from target_service.kv_tier.pace import FIRST, HALF_LIFE, FetchPace

BLOCK = 10**6  # bytes


def test_it_follows_what_fetches_took_and_forgets_it_again() -> None:
    now = 0.0
    pace = FetchPace(BLOCK, lambda: now)
    assert pace.seconds(1) == pytest.approx(BLOCK * FIRST)
    for _ in range(50):
        pace.observe(10, 1.0)
    assert pace.seconds(10) == pytest.approx(1.0, rel=0.01)
    now += HALF_LIFE
    assert pace.seconds(10) == pytest.approx((1.0 + 10 * BLOCK * FIRST) / 2, rel=0.01)
    now += 20 * HALF_LIFE
    assert pace.seconds(1) == pytest.approx(BLOCK * FIRST, rel=0.01)
