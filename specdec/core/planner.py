"""Whom to ask for a draft and for how many tokens: a planner that measures the terms of the cost model (`speedup.py`).

The planner reads counts, exact alphas and times of committed cycles, never a draft token, so every rule stays
exact under it (section 9). It is a value: one per session, nothing is shared between requests. What a verifier measured
of itself is where it begins; what cycles took corrects that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specdec.core import source_record
from specdec.core.line import EMPTY_LINE, Line
from specdec.core.pricing import Price, cycle_seconds, forward_of, plain_seconds, price_of
from specdec.core.source_record import (
    NOTHING_KNOWN,
    OUTLIER,
    TRIALS,
    CycleOutcome,
    Offer,
    SourceRecord,
    add_time,
    gains,
    learned,
    waits,
)
from specdec.core.step_time import UNMEASURED, StepTimeTable

START = 4  # draft tokens while nothing is known of the times; at most, while only the verifier's own table is
PROBE = 2  # draft tokens of a probe; twice as many nodes of a tree
FEW_TRIALS = 3  # asks of which a first judgement is made
SPARE = 0.003  # of the time, that all probes together may lose
RESTING = 16  # cycles after which a source that was left alone is looked at now and then only
# Tokens of a match whose source does not rest. Alone any pair of words is looked at: on chat and code they bring 6 to 8
# percent. Among many that seldom pays, and looking takes time from the coordinator that they share.
CLEAR_ALONE, CLEAR_AMONG_MANY = 1, 4
LOOK = 4  # a look comes late by twice the time that it was left alone over this, at most
# Of plain decoding's pace, by which a draft must promise more among many: the best of several estimates flatters
# itself, a row that is not worth its price is paid by all, and what drafting costs coordinator and drafter is in no
# estimate.
MARGIN = 0.15
HEAD_START = 2.0  # steps that a session may fall behind plain decoding, and SPARE of its time, for early trials


@dataclass(frozen=True, slots=True)
class Planner:
    """State of one session. step_times: the verifier's own, None: it told none. sources: what was learned of each, by
    `Offer.source`. verify: the seconds that a forward took over those that the table expects, by all of its rows;
    queue: the wait before it, over its own time; network, draft_network: seconds on the way to the verifier and to
    drafters; batch: messages in a forward, over one's own rows; cycles: observed so far; lost: steps that the session
    is behind plain decoding, never below 0."""

    step_times: StepTimeTable | None = None
    sources: Mapping[str, SourceRecord] = field(default_factory=dict)
    verify: Line = EMPTY_LINE
    queue: Line = EMPTY_LINE
    network: Line = EMPTY_LINE
    draft_network: Line = EMPTY_LINE
    batch: Line = EMPTY_LINE
    cycles: int = 0
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class _Plan:
    """rate: tokens per second that asking for k > 0 promises; seconds: of such a cycle."""

    offer: Offer
    k: int
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def served_by(planner: Planner, step_times: StepTimeTable | None) -> Planner:
    """The planner once a verifier with this table serves the session: what was learned of another's pace goes."""
    if step_times is planner.step_times:
        return planner
    return replace(planner, step_times=step_times, verify=EMPTY_LINE, queue=EMPTY_LINE)


def in_company(planner: Planner, messages: float) -> Planner:
    """The planner with a guess at how many messages share a forward, which holds until one has told."""
    return planner if planner.batch.weight else replace(planner, batch=Line(y=messages))


def handed_on(planner: Planner, begun: Planner) -> Planner:
    """What a new session begins with where this one, which began with `begun`, has ended: what sources bring and take,
    without the tries that every session would else pay for again. How busy the verifier was is not handed on."""
    sources = {
        name: source_record.handed_on(record, begun.sources.get(name, NOTHING_KNOWN), planner.cycles)
        for name, record in planner.sources.items()
    }
    known = ("verify", "network", "draft_network")
    lines = {name: getattr(planner, name).faded(source_record.HANDED_ON) for name in known}
    return Planner(planner.step_times, sources, **lines)


def plan(planner: Planner, max_k: int, drafter: str = "", context: int = 0) -> int:
    """Depth to ask the one `drafter` for, 0..max_k, behind `context` tokens."""
    assert max_k >= 0, f"max_k {max_k}"
    return choose(planner, [Offer(drafter, max_k)], max_k, context)[1]


def choose(planner: Planner, offers: Sequence[Offer], limit: int, context: int = 0) -> tuple[Offer | None, int]:
    """Whom to ask, and for how many draft tokens, at most `limit`: what promises most tokens per second behind
    `context` tokens; (None, 0): plain decoding, where no source promises more.

    Now and then a source that is not the best is asked all the same, so that a text that has become easy for it is
    noticed: ever more rarely while it goes on losing, never so often that probes cost more than SPARE of the time, and
    again at once while its drafts are accepted whole, if that would make it the best. Of several the one that was asked
    least."""
    offers = [offer for offer in offers if min(offer.most, limit) > 0 and not _rests(planner, offer)]
    if not offers:
        return None, 0
    price = price_of(planner, context)
    plans = [_best(planner, offer, min(offer.most, limit), price) for offer in offers]
    step = plain_seconds(planner, price)
    best = max(plans, key=lambda p: p.rate)
    least = (1 + MARGIN * (1 - 1 / max(1.0, planner.batch.y))) / step
    rate = max(best.rate, least)
    for other in sorted(plans, key=lambda p: planner.sources.get(p.offer.source, NOTHING_KNOWN).asks):
        if other is best and best.rate > least:
            continue
        probe = other if other.rate > least else _probe(planner, other, limit, price, rate)
        if _due(planner, probe, rate, step, len(plans)):
            return probe.offer, probe.k
    return (best.offer, best.k) if best.rate > least else (None, 0)


def _rests(planner: Planner, offer: Offer) -> bool:
    """To price a source takes as long as a fair part of a small model's step."""
    record = planner.sources.get(offer.source)
    clear = CLEAR_ALONE if planner.batch.y < 2 else CLEAR_AMONG_MANY
    if record is None or record.promising or offer.matched >= clear:
        return False
    rested = planner.cycles - record.last
    # All that rest are looked at in the same cycles, at powers of two: in most cycles there is nothing to price.
    return rested > RESTING and planner.cycles % (1 << (rested // LOOK).bit_length()) > 0


def pays(planner: Planner, offer: Offer, context: int = 0) -> bool | None:
    """Whether asking this source promises more than plain decoding; None: it was hardly tried, and might."""
    price = price_of(planner, context)
    plain = 1 / plain_seconds(planner, price)
    best = _best(planner, offer, offer.most, price)
    if planner.sources.get(offer.source, NOTHING_KNOWN).asks >= FEW_TRIALS:
        return best.rate > plain
    probe = _probe(planner, best, offer.most, price, plain)
    return None if (1 + probe.k) / probe.seconds > plain else False


def _best(planner: Planner, offer: Offer, most: int, price: Price) -> _Plan:
    """The k in 1..most that promises most, the smallest of equals. Little is risked on a source that was never asked,
    less where there are others that were."""
    known = planner.sources.get(offer.source)
    if known is None and not offer.local and planner.sources:
        most = min(_probe_size(offer), most)
    elif not planner.verify.weight or (known is None and not offer.local):
        most = min(START, most)
    record = known or NOTHING_KNOWN
    tokens = gains(record, offer, most)
    seconds = cycle_seconds(planner, record, offer, price)
    # Every k: a forward's time jumps with its rows, so that a longer draft may be better again.
    rates = [tokens[k] / seconds(k) for k in range(1, most + 1)]
    k = rates.index(max(rates)) + 1
    return _Plan(offer, k, tokens[k], seconds(k))


def _probe(planner: Planner, plan: _Plan, limit: int, price: Price, rate: float) -> _Plan:
    """What to ask a source for that promises less than plain decoding: what loses least against `rate`."""
    record, offer = planner.sources.get(plan.offer.source, NOTHING_KNOWN), plan.offer
    k = min(_probe_size(offer), offer.most, limit)
    short = _Plan(offer, k, gains(record, offer, k)[k], cycle_seconds(planner, record, offer, price)(k))
    return min(short, plan, key=lambda p: p.seconds - p.tokens / rate)


def _probe_size(offer: Offer) -> int:
    return 2 * PROBE if offer.tree else PROBE


def _due(planner: Planner, probe: _Plan, rate: float, step: float, sources: int) -> bool:
    """Whether to ask a source that is not the best. rate: the best's, in tokens per second; step: seconds of a cycle
    without a draft; sources: offered, which share what probes may lose."""
    record = planner.sources.get(probe.offer.source, NOTHING_KNOWN)
    could_win = (1 + probe.k) / probe.seconds > rate
    if record.promising and could_win:
        return True
    loss = (probe.seconds - probe.tokens / rate) / step
    if record.paid:
        loss += max(0.0, record.paid - record.network.y - record.seconds.y) / step
    affordable = loss * sources / SPARE
    if record.asks < TRIALS and could_win and planner.lost + loss <= HEAD_START + SPARE * planner.cycles:
        affordable = 0.0
    return planner.cycles - record.last >= waits(record, affordable)


def observe(planner: Planner, cycle: CycleOutcome) -> Planner:
    """The planner after one more cycle."""
    number = planner.cycles + 1
    if cycle.verify_seconds is None:
        planner = replace(planner, cycles=number)
    else:
        planner = _observe_verify(planner, cycle, cycle.verify_seconds, number)
    if cycle.asked == 0:
        return planner
    if cycle.verify_seconds is not None:
        planner = replace(planner, lost=max(0.0, planner.lost + _behind(planner, cycle)))
    record = learned(planner.sources.get(cycle.drafter, NOTHING_KNOWN), cycle, number)
    if cycle.draft_seconds is not None and not cycle.local:
        planner = replace(planner, draft_network=add_time(planner.draft_network, 0.0, cycle.draft_network))
    return replace(planner, sources={**planner.sources, cycle.drafter: record})


def _observe_verify(planner: Planner, cycle: CycleOutcome, seconds: float, number: int) -> Planner:
    """Written out: this runs in every cycle of every session, and `replace` takes several times as long."""
    batch = planner.batch.add(cycle.rows, cycle.batch)
    rows = cycle.batch_rows or cycle.rows + (cycle.batch - 1) * batch.x
    forward = max(1e-9, seconds - cycle.verify_queue)
    told = bool(cycle.batch_rows) or cycle.batch == 1
    return Planner(
        planner.step_times,
        planner.sources,
        verify=_add_verify(planner, rows, told, cycle.context, forward),
        queue=add_time(planner.queue, 0.0, cycle.verify_queue / forward),
        network=add_time(planner.network, 0.0, cycle.verify_network),
        draft_network=planner.draft_network,
        batch=batch,
        cycles=number,
        lost=planner.lost,
    )


def _behind(planner: Planner, cycle: CycleOutcome) -> float:
    """Steps by which plain decoding would have been earlier with as many tokens as this cycle brought; its rows are
    priced as if all sessions had asked for as many."""
    price = price_of(planner, cycle.context)
    verify = price(max(1.0, planner.batch.y) * cycle.rows, planner.queue.y)
    return (cycle.paid + verify) / plain_seconds(planner, price) - (1 + cycle.accepted)


def _add_verify(planner: Planner, rows: float, told: bool, context: int, seconds: float) -> Line:
    if planner.verify.weight and planner.verify.y > 0:
        seconds = min(seconds, OUTLIER * forward_of(planner, context)(rows))
    at = rows if told or not planner.verify.weight else planner.verify.x  # a guess at rows says nothing of their price
    return planner.verify.add(at, seconds / (planner.step_times or UNMEASURED).estimate(rows, context))
