"""What a cycle will take, by what a session's planner has measured: it and all that share its forwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specdec.core.line import EMPTY_LINE
from specdec.core.source_record import Offer, SourceRecord
from specdec.core.step_time import UNMEASURED

if TYPE_CHECKING:
    from specdec.core.planner import Planner

# Seconds of a verify, the way included, by rows of the whole forward and by the wait before it over the forward's time.
Price = Callable[[float, float], float]
Forward = Callable[[float], float]  # seconds of a forward alone, by its rows


def cycle_seconds(planner: Planner, record: SourceRecord, offer: Offer, price: Price) -> Callable[[int], float]:
    """Expected seconds of a cycle by the k > 0 that it asks for. Rows are priced as if every session in the batch did
    the same: a row that slows all of them must not look cheap because each pays a share. So are drafts that are
    computed on the target's processor."""
    batch, rows = max(1.0, planner.batch.y), record.rows.y if record.rows.weight else 1.0
    if not record.network.weight:
        known, way = EMPTY_LINE, 0.0 if offer.local else planner.draft_network.y
    else:
        known, way = record.seconds, record.network.y
    others = max(1.0, batch / max(1.0, record.batch.y)) if offer.shares else 1.0
    depth, draft = 1.0 if offer.tree else record.depth.y, known.line()
    wait = max(planner.queue.y, record.wait.y * (1 - 1 / batch))  # nobody is waited for where nobody else is
    return lambda k: max(1e-9, price(batch * (1 + k * rows), wait) + others * draft(k * depth) + way)


def plain_seconds(planner: Planner, price: Price) -> float:
    """Expected seconds of a cycle without a draft."""
    return max(1e-9, price(max(1.0, planner.batch.y), planner.queue.y))


def price_of(planner: Planner, context: int) -> Price:
    """Whoever finds others before it waits for forwards like its own: that grows with them."""
    forward, network = forward_of(planner, context), planner.network.y
    return lambda rows, wait: (1 + wait) * forward(rows) + network


def forward_of(planner: Planner, context: int) -> Forward:
    """As the table has it, times what forwards took over that; and once they have differed in rows, with the slope that
    they showed. More rows never cost less, and the slope keeps to what leaves a positive time."""
    line, estimate = planner.verify, (planner.step_times or UNMEASURED).behind(context)
    if not line.weight:
        return estimate
    middle = estimate(line.x)
    measured, shown, through_origin = line.y * middle, middle * line.slope(0.0), line.y * middle / line.x

    def seconds(rows: float) -> float:
        if rows == line.x:
            return measured
        prior = line.y * (estimate(rows) - middle) / (rows - line.x)
        slope = min(max(prior + shown, 0.0), max(through_origin, prior))
        return measured + slope * (rows - line.x)

    return seconds
