"""How many tokens to draft: the cost model of speculative decoding and a planner that measures its terms
(algorithms.md, section 11; Leviathan et al. 2023, section 3.3).

The planner reads counts, exact alphas and times of committed cycles, never a draft token, so every rule stays
exact under it (section 9). It is a value: one per session, nothing is shared between requests. What a verifier measured
of itself is where it begins; what cycles took corrects that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from specdec.core.line import EMPTY_LINE, MEMORY, Line
from specdec.core.step_time import UNMEASURED, StepTimeTable

IDLE_MEMORY = 0.99  # the same for positions that were not asked for: they are tried again, but not soon
LEAST_TRIES = 8.0  # tries that plain cycles leave of what was known
START = 4  # draft tokens while nothing is known of the times; at most, while only the verifier's own table is
FIRST_ALPHA, FIRST_WEIGHT = 0.7, 1.0  # prior of the first position, in tries
LEAN = 3.0  # weight, in tries, with which a position leans on the one before
PROBE = 2  # draft tokens of a probe
FIRST_PROBE, LAST_PROBE = 8, 256  # plain cycles before a probe: doubles with each one in a row
SETTLED = 8  # drafted cycles in a row after which probing starts afresh
OUTLIER = 4.0  # an observed time counts at most as this many predicted ones


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens per cycle with k draft tokens, each accepted with probability alpha: (1 - alpha^(k+1)) / (1 -
    alpha), summed as a series so that alpha = 1 is no exception."""
    return sum(alpha**i for i in range(k + 1))


def speedup(alpha: float, k: int, c: float, rho: float = 0.0, rho_d: float = 0.0) -> float:
    """Over plain decoding in the same topology. c: draft step over target step; rho, rho_d: round trips to
    verifier and drafter over target step. Without draft tokens the drafter is not asked."""
    cycle = 1 + rho + (k * c + rho_d if k else 0.0)
    return expected_tokens(alpha, k) * (1 + rho) / cycle


def best_k(alpha: float, c: float, rho: float, rho_d: float, max_k: int) -> int:
    """The k in 0..max_k with the greatest speedup, the smallest of equals."""
    return max(range(max_k + 1), key=lambda k: speedup(alpha, k, c, rho, rho_d))


@dataclass(frozen=True, slots=True)
class CycleOutcome:
    """What a committed cycle teaches. drafter: who was asked, also where another stepped in for it. asked:
    depth asked for (0: plain decoding); depth: depth of the draft that came; rows: nodes verified, draft
    tokens + 1; accepted: draft tokens accepted. alphas: as in `Acceptance`, () where they do not measure
    acceptance (coupled drafts).

    draft_seconds, verify_seconds: queue and compute as the replica reports them, None where the cycle is no
    measure of the next one (it computed a prompt, or was retried); the rest of each phase's wall time is
    network. batch, batch_rows: messages and rows in the verify's forward, all sessions together; rows 0:
    unknown, then the others' are taken to be like one's own on average, which prices a row less well. context: rows
    that the verifier held before it."""

    asked: int
    depth: int
    rows: int
    accepted: int
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    draft_network: float = 0.0
    verify_network: float = 0.0
    batch: int = 1
    batch_rows: int = 0
    alphas: tuple[float, ...] = ()
    drafter: str = ""
    context: int = 0


@dataclass(frozen=True, slots=True)
class DrafterRecord:
    """What asking one drafter has brought. tries, hits: decayed counts by position, of cycles that got that
    far and of those that went on; a token that did not come is a miss. seconds: over the depth that came;
    depth, rows: what came over what was asked for; network: seconds."""

    tries: tuple[float, ...] = ()
    hits: tuple[float, ...] = ()
    seconds: Line = EMPTY_LINE
    depth: Line = EMPTY_LINE
    rows: Line = EMPTY_LINE
    network: Line = EMPTY_LINE


@dataclass(frozen=True, slots=True)
class Planner:
    """State of one session. step_times: the verifier's own, None: it told none. verify: the seconds that a verify took
    over those that the table expects, by the rows of the whole forward; batch: messages in it, over one's own rows.
    plain, drafted: length of the present run of cycles without and with a draft; promising: the last draft was
    accepted whole; probe_after: plain cycles before the next probe."""

    step_times: StepTimeTable | None = None
    drafters: Mapping[str, DrafterRecord] = field(default_factory=dict)
    verify: Line = EMPTY_LINE
    network: Line = EMPTY_LINE
    batch: Line = EMPTY_LINE
    plain: int = 0
    drafted: int = 0
    promising: bool = False
    probe_after: int = FIRST_PROBE


def served_by(planner: Planner, step_times: StepTimeTable | None) -> Planner:
    """The planner once a verifier with this table serves the session: what was learned of another's pace goes."""
    if step_times is planner.step_times:
        return planner
    return replace(planner, step_times=step_times, verify=EMPTY_LINE)


def plan(planner: Planner, max_k: int, drafter: str = "", context: int = 0) -> int:
    """Depth to ask `drafter` for, 0..max_k, behind `context` tokens: the one that promises most tokens per second.
    Where that is 0, now and then a short probe, repeated while it is accepted whole, so that a text that has become
    easy is noticed."""
    assert max_k >= 0, f"max_k {max_k}"
    record, most = planner.drafters.get(drafter), max_k
    if record is None or not planner.verify.weight:
        most = min(START, max_k)
        if planner.step_times is None:
            return most
    record = record or DrafterRecord()
    tokens = [1.0]
    for survival in _survival(record, most):
        tokens.append(tokens[-1] + survival)
    k = max(range(most + 1), key=lambda k: tokens[k] / _seconds(planner, record, k, context))
    if k == 0 and (planner.promising or planner.plain >= planner.probe_after):
        return min(PROBE, max_k)
    return k


def _survival(record: DrafterRecord, max_k: int) -> Iterator[float]:
    """Chance that each position is reached and accepted. Positions seldom reached lean on the one before:
    acceptances are correlated, so one alpha for all would be too low for the later ones."""
    chance, weight, survival = FIRST_ALPHA, FIRST_WEIGHT, 1.0
    for i in range(max_k):
        tries, hits = (record.tries[i], record.hits[i]) if i < len(record.tries) else (0.0, 0.0)
        chance = (hits + weight * chance) / (tries + weight)
        weight = LEAN
        survival *= chance
        yield survival


def _seconds(planner: Planner, record: DrafterRecord, k: int, context: int) -> float:
    """Expected seconds of a cycle that asks for k. Rows are priced as if every session in the batch did the
    same: a row that slows all of them must not look cheap because each pays a share."""
    rows = 1 + k * (record.rows.y if record.rows.weight else 1.0)
    seconds = _verify_seconds(planner, max(1.0, planner.batch.y) * rows, context) + planner.network.y
    if k:
        seconds += record.seconds.at(k * record.depth.y) + record.network.y
    return max(seconds, 1e-9)


def _verify_seconds(planner: Planner, rows: float, context: int) -> float:
    """As the table has it, times what cycles took over that; and once they have differed in rows, with the slope that
    they showed. More rows never cost less, and the slope keeps to what leaves a positive time."""
    table, line = planner.step_times or UNMEASURED, planner.verify
    expected = table.estimate(rows, context)
    if not line.weight:
        return expected
    middle = table.estimate(line.x, context)
    if rows == line.x:
        return line.y * middle
    prior = line.y * (expected - middle) / (rows - line.x)
    through_origin = line.y * middle / line.x
    slope = prior + middle * line.slope(0.0)
    return line.y * middle + min(max(slope, 0.0), max(through_origin, prior)) * (rows - line.x)


def observe(planner: Planner, cycle: CycleOutcome) -> Planner:
    """The planner after one more cycle."""
    if cycle.verify_seconds is not None:
        batch = planner.batch.add(cycle.rows, cycle.batch)
        rows = cycle.batch_rows or cycle.rows + (cycle.batch - 1) * batch.x
        planner = replace(
            planner,
            verify=_add_verify(planner, rows, cycle.context, cycle.verify_seconds),
            network=_add_time(planner.network, 0.0, cycle.verify_network),
            batch=batch,
        )
    if cycle.asked == 0:
        return replace(planner, plain=planner.plain + 1, drafted=0, promising=False)
    record = planner.drafters.get(cycle.drafter, DrafterRecord())
    record = _add_acceptance(record, cycle, planner.plain)
    if cycle.draft_seconds is not None:
        record = replace(
            record,
            seconds=_add_time(record.seconds, cycle.depth, cycle.draft_seconds),
            network=_add_time(record.network, 0.0, cycle.draft_network),
        )
    drafted, probe_after = planner.drafted + 1, planner.probe_after
    if planner.plain >= probe_after:
        probe_after = min(2 * probe_after, LAST_PROBE)
    if drafted >= SETTLED:
        probe_after = FIRST_PROBE
    return replace(
        planner,
        drafters={**planner.drafters, cycle.drafter: record},
        plain=0,
        drafted=drafted,
        promising=0 < cycle.depth == cycle.accepted,
        probe_after=probe_after,
    )


def _add_verify(planner: Planner, rows: float, context: int, seconds: float) -> Line:
    if planner.verify.weight and planner.verify.y > 0:
        seconds = min(seconds, OUTLIER * _verify_seconds(planner, rows, context))
    return planner.verify.add(rows, seconds / (planner.step_times or UNMEASURED).estimate(rows, context))


def _add_time(line: Line, x: float, seconds: float) -> Line:
    """One pause must not outweigh all that was measured before it."""
    if line.weight and line.y > 0:
        seconds = min(seconds, OUTLIER * line.at(x))
    return line.add(x, seconds)


def _add_acceptance(record: DrafterRecord, cycle: CycleOutcome, plain: int) -> DrafterRecord:
    """Exact alphas, where a chain has them, take the place of hits and misses: the same mean without the
    noise. plain: cycles without a draft before this one."""
    n = max(len(record.tries), cycle.asked)
    pad = (0.0,) * (n - len(record.tries))
    tries, hits = list(record.tries + pad), list(record.hits + pad)
    exact = cycle.alphas if cycle.rows == cycle.depth + 1 else ()
    for i in range(n):
        kept = MEMORY if i < cycle.asked else IDLE_MEMORY
        if plain and tries[i] > LEAST_TRIES:
            kept = max(kept ** (plain + 1), LEAST_TRIES / tries[i])
        tries[i], hits[i] = kept * tries[i], kept * hits[i]
        if i < min(cycle.accepted + 1, cycle.asked):
            tries[i] += 1
            hits[i] += exact[i] if i < len(exact) else float(i < cycle.accepted)
    return replace(
        record,
        tries=tuple(tries),
        hits=tuple(hits),
        depth=record.depth.add(0.0, cycle.depth / cycle.asked),
        rows=record.rows.add(0.0, (cycle.rows - 1) / cycle.asked),
    )
