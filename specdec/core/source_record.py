"""What asking one draft source has brought: how many tokens, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specdec.core.line import EMPTY_LINE, Line

MEMORY = 0.98  # weight that an acceptance keeps per later one: about 50 count
IDLE_MEMORY = 0.99  # the same for positions that were not asked for: they are tried again, but not soon
LEAST_TRIES = 8.0  # tries that cycles without the source leave of what was known
FIRST_ALPHA, FIRST_WEIGHT = 0.7, 1.0  # prior of the first position, in tries
LEAN = 3.0  # weight, in tries, with which a position leans on the one before
TREE_DECAY = 0.7  # prior: gain of the next group of nodes over this one's
FIRST_PROBE, LAST_PROBE = 8, 256  # cycles without the source before a probe, at least; at most, if it can be afforded
HANDED_ON = 12.0  # observations that a session leaves to the next
LONG = 100  # asks, over several sessions, whose mean that is
TRIALS = 12  # asks before a source is taken to be known
EMPTY = 3  # asks that an empty draft counts for: it leaves less doubt than a wrong one
MOST_DOUBT = 16  # a probe's wait doubles with each one in a row, up to so many times the first
SETTLED = 8  # cycles in a row with the source after which probing starts afresh
OUTLIER = 4.0  # an observed time counts at most as this many predicted ones


@dataclass(frozen=True, slots=True)
class Offer:
    """A source that can be asked in this cycle. source: the name under which it is learned; most: draft tokens at most;
    tree: they are nodes of a tree, not depth.

    shares: it computes on the target's processor, where what one session drafts is time that all others wait.

    matched: for a lookup in the context, the length of its match, which says before anything is learned how likely the
    first token is; 0: another kind of source. local: the draft is at hand and costs no round trip."""

    source: str
    most: int
    tree: bool = False
    matched: int = 0
    shares: bool = False
    local: bool = False

    @property
    def chance(self) -> float:
        """Prior of the first token."""
        return self.matched / (self.matched + 2) if self.matched else FIRST_ALPHA


@dataclass(frozen=True, slots=True)
class CycleOutcome:
    """What a committed cycle teaches. drafter: the source that was asked, also where another stepped in for it. asked:
    draft tokens asked for (0: plain decoding); depth: of the draft that came; rows: nodes verified, draft tokens + 1;
    accepted: draft tokens accepted; tree: asked counts nodes, and `nodes` are the accepted ones. alphas: the
    `exact_chances` of `Acceptance`, () where acceptance can only be counted (coupled drafts). local: the draft came
    from no replica.

    draft_seconds, verify_seconds: queue and compute as the replica reports them, None where the cycle is no
    measure of the next one (it computed a prompt, or was retried); the rest of each phase's wall time is
    network. verify_queue: what of verify_seconds was before the forward. batch, batch_rows: messages and rows in the
    verify's forward, all sessions together; rows 0: unknown, then the others' are taken to be like one's own on
    average, which prices a row less well. context: rows that the verifier held before it. draft_batch: messages that
    the drafter served together. paid: wall seconds of the whole draft phase, a prompt computed in it included."""

    asked: int
    depth: int
    rows: int
    accepted: int
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    verify_queue: float = 0.0
    draft_network: float = 0.0
    verify_network: float = 0.0
    batch: int = 1
    batch_rows: int = 0
    alphas: tuple[float, ...] = ()
    drafter: str = ""
    context: int = 0
    tree: bool = False
    nodes: tuple[int, ...] = ()
    local: bool = False
    draft_batch: int = 1
    paid: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """tries, hits: decayed counts by position, of cycles that got that far and of those that went on; a token that did
    not come is a miss. For trees by group of nodes, of cycles that asked for them and of nodes accepted there.
    seconds: over the depth that came, for trees over the nodes asked for; depth, rows: what came over what was asked
    for; network: seconds; batch: messages that the drafter served together; wait: before the forward, over that one's
    time, since who comes later than others, for the draft's sake, may find them gone ahead.

    last: number of the cycle that asked it last; run: cycles in a row that did; promising: its last draft was accepted
    whole; doubt: times its first wait that the next probe waits; asks: so far; paid: wall seconds of its last draft."""

    tries: tuple[float, ...] = ()
    hits: tuple[float, ...] = ()
    seconds: Line = EMPTY_LINE
    depth: Line = EMPTY_LINE
    rows: Line = EMPTY_LINE
    network: Line = EMPTY_LINE
    batch: Line = EMPTY_LINE
    wait: Line = EMPTY_LINE
    last: int = 0
    run: int = 0
    promising: bool = False
    doubt: int = 1
    asks: int = 0
    paid: float = 0.0


NOTHING_KNOWN = SourceRecord()
_LINES = ("seconds", "depth", "rows", "network", "batch", "wait")


def gains(record: SourceRecord, offer: Offer, most: int) -> list[float]:
    """Expected tokens of a cycle that asks for 0, 1, ..., most draft tokens."""
    tokens = [1.0]
    for gain in _tree_gains(record, offer, most) if offer.tree else _survival(record, offer, most):
        tokens.append(tokens[-1] + gain)
    return tokens


def _survival(record: SourceRecord, offer: Offer, most: int) -> Iterator[float]:
    """Chance that each position is reached and accepted. Positions seldom reached lean on the one before:
    acceptances are correlated, so one alpha for all would be too low for the later ones."""
    chance, weight, survival = offer.chance, FIRST_WEIGHT, 1.0
    for i in range(most):
        tries, hits = (record.tries[i], record.hits[i]) if i < len(record.tries) else (0.0, 0.0)
        chance = (hits + weight * chance) / (tries + weight)
        weight = LEAN
        survival *= chance
        yield survival


def _tree_gains(record: SourceRecord, offer: Offer, most: int) -> Iterator[float]:
    """Chance that each node is accepted, one for all nodes of a group. Groups double in size, and each doubling of a
    good tree brings about as much as the one before: a group seldom asked for leans on that."""
    gain, weight = offer.chance / TREE_DECAY, FIRST_WEIGHT
    for group in range(tree_group(most) + 1 if most else 0):
        tries, hits = (record.tries[group], record.hits[group]) if group < len(record.tries) else (0.0, 0.0)
        gain = (hits + weight * TREE_DECAY * gain) / (tries + weight)
        weight = LEAN
        first, last = _bounds(group)
        for _ in range(first, min(last, most) + 1):
            yield gain / (last - first + 1)


def tree_group(node: int) -> int:
    """0 for the first draft token, 1 for the second, 2 for the third and fourth, 3 for the next four, ..."""
    return (node - 1).bit_length()


def _bounds(group: int) -> tuple[int, int]:
    return ((1 << group) // 2 + 1, 1 << group) if group else (1, 1)


def learned(record: SourceRecord, cycle: CycleOutcome, number: int) -> SourceRecord:
    """The record after its source was asked in the cycle of this number (from 1)."""
    idle = number - 1 - record.last
    record = _add_tree(record, cycle, idle) if cycle.tree else _add_chain(record, cycle, idle)
    if cycle.draft_seconds is not None:
        size = cycle.asked if cycle.tree else cycle.depth
        record = replace(
            record,
            seconds=add_time(record.seconds, size, cycle.draft_seconds),
            network=add_time(record.network, 0.0, cycle.draft_network),
            batch=record.batch.add(0.0, cycle.draft_batch),
        )
    if cycle.verify_seconds is not None:
        wait = cycle.verify_queue / max(1e-9, cycle.verify_seconds - cycle.verify_queue)
        record = replace(record, wait=record.wait.add(0.0, min(OUTLIER, wait)))
    run, doubt = (record.run + 1 if idle == 0 else 1), record.doubt
    if idle >= FIRST_PROBE and record.asks >= TRIALS:
        doubt = min(2 * doubt, MOST_DOUBT)
    if run >= SETTLED:
        doubt = 1
    return replace(
        record,
        depth=record.depth.add(0.0, cycle.depth / cycle.asked),
        rows=record.rows.add(0.0, (cycle.rows - 1) / cycle.asked),
        last=number,
        run=run,
        promising=0 < cycle.depth == cycle.accepted,
        doubt=doubt,
        asks=record.asks + (1 if cycle.depth else EMPTY),
        paid=cycle.paid,
    )


def handed_on(record: SourceRecord, begun: SourceRecord, cycles: int) -> SourceRecord:
    """What another session may begin with after this one, which began with `begun` and had so many cycles. The chances
    are means over about LONG asks, whatever this session's were; they weigh no more than a few drafts of the next
    session's own. How long the source was left alone goes on counting: sessions that are shorter than the wait for a
    probe would else never correct what one of them took for true."""
    new = record.asks - begun.asks
    share = new / min(record.asks, LONG + new) if new else 0.0
    tries, hits = [], []
    for i, (tried, hit) in enumerate(zip(record.tries, record.hits, strict=True)):
        chance = hit / tried if tried else 0.0
        if i < len(begun.tries) and begun.tries[i]:
            chance = share * chance + (1 - share) * begun.hits[i] / begun.tries[i]
        tries.append(min(tried, HANDED_ON))
        hits.append(tries[-1] * chance)
    lines = {name: getattr(record, name).faded(HANDED_ON) for name in _LINES}
    return replace(
        record, tries=tuple(tries), hits=tuple(hits), last=record.last - cycles, run=0, promising=False, **lines
    )


def waits(record: SourceRecord, affordable: float) -> float:
    """Cycles without the source before it is probed. affordable: cycles after which what a probe loses is within what
    may be lost."""
    least = max(FIRST_PROBE, affordable)
    return max(least, min(LAST_PROBE, record.doubt * least))


def _add_chain(record: SourceRecord, cycle: CycleOutcome, idle: int) -> SourceRecord:
    """Exact alphas, where a chain has them, take the place of hits and misses: the same mean without the noise."""
    tries, hits = _faded(record, cycle.asked, cycle.asked, idle)
    exact = cycle.alphas if cycle.rows == cycle.depth + 1 else ()
    for i in range(min(cycle.accepted + 1, cycle.asked)):
        tries[i] += 1
        hits[i] += exact[i] if i < len(exact) else float(i < cycle.accepted)
    return replace(record, tries=tuple(tries), hits=tuple(hits))


def _add_tree(record: SourceRecord, cycle: CycleOutcome, idle: int) -> SourceRecord:
    """Best nodes come first, so that a tree also tells what a smaller one would have brought."""
    groups = tree_group(cycle.asked) + 1
    tries, hits = _faded(record, groups, groups, idle)
    for group in range(groups):
        first, last = _bounds(group)
        tries[group] += (min(last, cycle.asked) - first + 1) / (last - first + 1)
    for node in cycle.nodes:
        hits[tree_group(node)] += 1
    return replace(record, tries=tuple(tries), hits=tuple(hits))


def _faded(record: SourceRecord, size: int, asked: int, idle: int) -> tuple[list[float], list[float]]:
    """Counts of at least `size` positions, older by one more cycle and by `idle` that passed without the source."""
    size = max(len(record.tries), size)
    pad = (0.0,) * (size - len(record.tries))
    tries, hits = list(record.tries + pad), list(record.hits + pad)
    for i in range(size):
        kept = MEMORY if i < asked else IDLE_MEMORY
        if idle and tries[i] > LEAST_TRIES:
            kept = max(kept ** (idle + 1), LEAST_TRIES / tries[i])
        tries[i], hits[i] = kept * tries[i], kept * hits[i]
    return tries, hits


def add_time(line: Line, x: float, seconds: float) -> Line:
    """One pause must not outweigh all that was measured before it."""
    if line.weight and line.y > 0:
        seconds = min(seconds, OUTLIER * line.at(x))
    return line.add(x, seconds)
