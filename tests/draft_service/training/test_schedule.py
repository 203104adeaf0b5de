from __future__ import annotations

import pytest

from draft_service.training.losses import Mix
from draft_service.training.schedule import Schedule

SCHEDULE = Schedule(rate=1.0, warm_up=10, begin=Mix(kl=1.0), end=Mix(tv=1.0), switch=0.5)


def test_the_rate_rises_and_then_falls_to_a_twentieth() -> None:
    rates = [SCHEDULE.rate_at(step, step / 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] == pytest.approx(0.05)


def test_one_loss_gives_way_to_the_other() -> None:
    assert SCHEDULE.mix_at(0.5) == Mix(kl=1.0)
    half = SCHEDULE.mix_at(0.55)
    assert (half.kl, half.tv) == pytest.approx((0.5, 0.5))
    assert SCHEDULE.mix_at(1.0) == Mix(tv=1.0)
