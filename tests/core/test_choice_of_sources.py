"""Whom the planner asks, in worlds of several draft sources with known laws and times: virtual seconds, fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specdec.core.line import Line
from specdec.core.planner import LOOK, RESTING, Planner, choose, observe
from specdec.core.source_record import CycleOutcome, Offer, SourceRecord, gains, learned, tree_group
from specdec.core.step_time import StepTimeTable
from tests.core.worlds import (
    BAD,
    COPY,
    FAIR,
    GOOD,
    LIMIT,
    PLAIN,
    PLAIN_RATE,
    PROSE,
    STEP,
    Source,
    World,
    best_rate,
    life,
    mean_rate,
    target,
)


@pytest.mark.parametrize("names", [("bad", "fair", "good"), ("good", "fair", "bad")])
def test_the_best_source_is_found_wherever_it_stands(names: tuple[str, ...]) -> None:
    there = {"good": GOOD, "fair": FAIR, "bad": BAD}
    world = {name: there[name] for name in names}
    lived = life()
    lived.live(lambda n: world, 300)
    assert lived.share("good") > 0.9
    assert mean_rate(world, 400) > 0.93 * best_rate(GOOD)


@pytest.mark.parametrize("trip", [0.0, 1.0, 5.0, 25.0])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_sources_that_are_all_useless_cost_hardly_anything(trip: float, count: int) -> None:
    """Nothing they say is ever right, at any distance, in 250 cycles and more."""
    world = {str(i): Source(0.02, 1.0 + i, trip) for i in range(count)}
    for cycles in (250, 1000):
        assert mean_rate(world, cycles) > 0.97 * PLAIN_RATE


def test_a_useless_source_beside_a_good_one_costs_hardly_anything() -> None:
    alone = mean_rate({"good": GOOD}, 300)
    assert mean_rate({"good": GOOD, "bad": BAD, "far": Source(0.5, 1.0, 20.0)}, 300) > 0.97 * alone


def lookups(n: int, copying: Callable[[int], bool]) -> World:
    """While text is copied a long match is there, in prose now and then a short one."""
    if copying(n):
        return {"ngram/long": COPY, "lm": FAIR}
    return {"ngram/short": PROSE, "lm": FAIR} if n % 3 == 0 else {"lm": FAIR}


def test_copying_goes_to_the_lookup_at_once_and_prose_back_to_the_model() -> None:
    lived = life()
    for stretch, name in enumerate(["lm", "ngram/long", "lm", "ngram/long", "lm"]):
        lived.live(lambda n, s=stretch: lookups(n, lambda n: s % 2 == 1), 60)  # type: ignore[misc]
        assert lived.share(name, last=40) > 0.85, (stretch, name)
        if name == "ngram/long":
            assert [source for source, _ in lived.chosen[-60:-50]].count(name) >= 9, "it was known before it was asked"


def test_a_long_match_is_believed_before_anything_was_learned_of_it() -> None:
    offer, k = choose(Planner(), [Offer("lm", LIMIT), Offer("ngram/long", LIMIT, matched=8, local=True)], LIMIT)
    assert offer is not None and offer.source == "ngram/long" and k >= 4


def test_a_model_whose_text_has_become_easy_is_noticed() -> None:
    lived = life()
    lived.live(lambda n: {"lm": Source(0.05, 1.0), "fair": FAIR}, 150)
    lived.live(lambda n: {"lm": Source(0.95, 1.0), "fair": FAIR}, 700)
    assert lived.share("lm") > 0.9


def test_a_source_that_has_become_bad_is_left_at_once() -> None:
    lived = life()
    lived.live(lambda n: {"a": GOOD, "b": FAIR}, 150)
    assert lived.share("a") > 0.8
    lived.live(lambda n: {"a": BAD, "b": FAIR}, 100)
    assert lived.share("b", 60) > 0.9


@pytest.mark.parametrize("trip", [0.0, 0.5, 2.5, 10.0, 25.0])
@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.8, 0.9])
def test_at_any_distance_the_planner_comes_close_to_the_best_fixed_k(trip: float, alpha: float) -> None:
    """Round trips of 0 to 50 ms beside a target step of 20 ms."""
    source = Source(alpha, 1.0, trip)
    best = best_rate(source)
    assert mean_rate({"lm": source}, 1000, seeds=4) > 0.95 * best


# Trees: what each doubling of the nodes brings, on average.

TREE_GAINS = (0.7, 0.35, 0.45, 0.5, 0.4, 0.3, 0.2)


def tree(k: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Accepted nodes of a tree whose best nodes come first."""
    nodes = [0]
    for node in range(1, k + 1):
        group = tree_group(node)
        size = max(1, (1 << group) // 2)
        if rng.random() < TREE_GAINS[group] / size:
            nodes.append(node)
    return tuple(nodes[1:])


def tree_rate(k: int, draft: float) -> float:
    gain = sum(TREE_GAINS[tree_group(n)] / max(1, (1 << tree_group(n)) // 2) for n in range(1, k + 1))
    return (1 + gain) / (k * draft + target(k + 1))


@pytest.mark.parametrize("draft", [0.01, 0.05, 0.3])
def test_trees_find_their_size(draft: float) -> None:
    world = {"eagle2": Source(draft=draft, accepts=tree)}
    best = max(tree_rate(k, draft) for k in range(61))
    assert mean_rate(world, 600) > 0.95 * best


def test_a_tree_and_a_chain_are_compared_by_what_they_bring() -> None:
    for chain, better in ((Source(0.6, 1.0), "tree"), (Source(0.9, 0.5), "lm")):
        lived = life()
        lived.live(lambda n, c=chain: {"lm": c, "tree": Source(draft=0.05, accepts=tree)}, 400)  # type: ignore[misc]
        assert lived.share(better) > 0.85


def test_a_tree_tells_what_a_smaller_one_would_have_brought() -> None:
    offer, record, rng = Offer("t", 60, tree=True), SourceRecord(), np.random.default_rng(1)
    for number in range(1, 400):
        outcome = Source(accepts=tree).cycle("t", 60, rng)
        record = learned(record, outcome, number)
    got = gains(record, offer, 60)
    for k in (1, 2, 4, 8, 16, 32):
        expected = 1 + sum(TREE_GAINS[: tree_group(k) + 1])
        assert got[k] == pytest.approx(expected, rel=0.25), k
    assert got == sorted(got)


@pytest.mark.parametrize("node", range(1, 256))
def test_groups_of_nodes_double(node: int) -> None:
    group = tree_group(node)
    assert (1 << group) // 2 < node <= 1 << group


# Load: sessions in lockstep on one verifier, flat up to 16 rows.


def crowd(n: int, world: World, cycles: int, speculate: bool = True) -> float:
    lives, tokens, spent = [life(seed) for seed in range(n)], 0, 0.0
    offers = [source.offer(name) for name, source in world.items()]
    for number in range(cycles):
        outcomes = []
        for one in lives:
            offer, k = choose(one.planner, offers, 8) if speculate else (None, 0)
            outcomes.append(PLAIN if offer is None else world[offer.source].cycle(offer.source, k, one.rng))
        rows = sum(outcome.rows for outcome in outcomes)
        verify = STEP * max(rows, 16) / 16
        if number:  # the first cycle computes the prompt, beside which its rows are nothing
            spent += max(outcome.paid for outcome in outcomes) + verify
            tokens += sum(outcome.accepted + 1 for outcome in outcomes)
        for one, outcome in zip(lives, outcomes, strict=True):
            seen = replace(outcome, verify_seconds=verify if number else None, batch=n, batch_rows=rows)
            one.planner = observe(one.planner, seen)
    return tokens / spent


@pytest.mark.parametrize("n", [8, 32])
def test_many_sessions_with_several_sources_never_lose(n: int) -> None:
    world = {"lm": Source(0.4, 0.3), "suffix": Source(0.2, 0.01), "ngram/short": Source(0.1, matched=2)}
    assert crowd(n, world, 300) > 0.97 * crowd(n, world, 300, speculate=False)


def test_few_sessions_with_several_sources_gain() -> None:
    world = {"lm": Source(0.8, 0.3), "suffix": Source(0.2, 0.01)}
    assert crowd(2, world, 300) > 1.5 * crowd(2, world, 300, speculate=False)


def test_a_verifiers_table_is_believed_before_anything_was_asked() -> None:
    steep = StepTimeTable.of((1, 64), (0,), [[10.0], [640.0]])
    assert choose(Planner(step_times=steep), [Offer("lm", LIMIT)], LIMIT) == (None, 0)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_never_more_than_the_limit_or_the_offer(limit: int) -> None:
    planner = life().planner
    for offers in ([], [Offer("a", 2)], [Offer("a", 0), Offer("b", 9, tree=True)]):
        offer, k = choose(planner, offers, limit)
        assert k <= min(limit, offer.most if offer else 0)
        assert (offer is None) == (k == 0)


def test_a_prompt_that_a_drafter_computed_is_no_measure_but_is_not_paid_for_often() -> None:
    """Catching up costs a hundred steps: after the first time the losing source is left alone for long."""
    lived = life()
    world: World = {"good": GOOD, "slow": replace(FAIR, draft=3.0)}
    lived.live(lambda n: world, 60)
    record = replace(lived.planner.sources["slow"], paid=100 * STEP)
    lived.planner = replace(lived.planner, sources={**lived.planner.sources, "slow": record})
    lived.live(lambda n: world, 600)
    assert sum(source == "slow" for source, _ in lived.chosen[60:]) == 0


def offers_seen(planner: Planner, names: Sequence[str]) -> set[str]:
    return {name for name in names if name in planner.sources}


def test_every_source_is_tried_where_trying_costs_little() -> None:
    names = [f"s{i}" for i in range(6)]
    lived = life()
    lived.live(lambda n: {name: Source(0.3 + 0.1 * i, 0.3) for i, name in enumerate(names)}, 200)
    assert offers_seen(lived.planner, names) == set(names)
    assert lived.share("s5", 60) > 0.7


def in_company(draft_batch: int, batch: int = 8) -> Planner:
    """A planner that has met a drafter of alpha .8 whose drafts take half a step, beside seven other sessions."""
    planner = Planner(StepTimeTable.of([1, 64], [0], [[STEP], [1.1 * STEP]]))
    for n in range(40):
        accepted = 2 if n % 5 else 0
        planner = observe(
            planner,
            CycleOutcome(
                2, 2, 3, accepted, 0.5 * STEP, STEP, batch=batch, batch_rows=3 * batch, drafter="lm",
                draft_batch=draft_batch,
            ),
        )  # fmt: skip
    return planner


def test_a_draft_on_the_targets_processor_is_time_that_all_sessions_wait() -> None:
    assert choose(in_company(1), [Offer("lm", LIMIT)], LIMIT)[1] > 0
    assert choose(in_company(1), [Offer("lm", LIMIT, shares=True)], LIMIT) == (None, 0)
    assert choose(in_company(1, batch=1), [Offer("lm", LIMIT, shares=True)], LIMIT)[1] > 0


def test_drafts_of_many_sessions_in_one_batch_are_paid_once() -> None:
    assert choose(in_company(8), [Offer("lm", LIMIT, shares=True)], LIMIT)[1] > 0


@pytest.mark.parametrize(("batch", "missed", "asks"), [(8, 0.0, True), (8, 1.5, False), (1, 1.5, True)])
def test_a_draft_that_makes_its_session_miss_the_others_forward_costs_that_forward(
    batch: int, missed: float, asks: bool
) -> None:
    """Its cycles found the others gone ahead and waited for `missed` forwards; plain ones came in time. Alone, there is
    nobody to miss."""
    planner = Planner(StepTimeTable.of([1, 64], [0], [[STEP], [1.1 * STEP]]))
    for _ in range(20):
        late = CycleOutcome(
            2, 2, 3, 1, 0.01 * STEP, (1 + missed) * STEP, missed * STEP, batch=8, batch_rows=24, drafter="suffix"
        )
        planner = observe(planner, late)
        planner = observe(planner, replace(late, asked=0, depth=0, rows=1, accepted=0, verify_queue=0.0,
                                           verify_seconds=STEP, drafter=""))  # fmt: skip
    planner = replace(planner, batch=Line(1.0, y=float(batch)), queue=Line(1.0))
    assert (choose(planner, [Offer("suffix", LIMIT)], LIMIT)[1] > 0) is asks


@pytest.mark.parametrize("batch", [1.0, 8.0])
@pytest.mark.parametrize("idle", [RESTING // 2, 4 * RESTING, 32 * RESTING])
def test_the_longer_a_source_was_left_alone_the_fewer_cycles_look_at_it(idle: int, batch: float) -> None:
    """It would be worth asking all the while; a lookup with a clear match is, in every cycle, and among many a pair of
    words that has been there before is not priced each time."""
    some = 2 * idle // LOOK if idle > RESTING else RESTING - idle
    planner = Planner()
    for _ in range(20):
        planner = observe(planner, GOOD.cycle("good", 4, np.random.default_rng(1)))
    good, copy = GOOD.offer("good"), COPY.offer("copy")
    for _ in range(idle):
        planner = observe(planner, PLAIN)
    known = replace(planner.sources["good"], promising=False)
    planner = replace(planner, sources=dict.fromkeys(("good", "pair", "copy"), known), batch=Line(1.0, y=batch))
    asked, pairs = [], []
    for _ in range(some):
        asked.append(choose(planner, [good], LIMIT)[1] > 0)
        pairs.append(choose(planner, [replace(good, source="pair", matched=2)], LIMIT)[1] > 0)
        assert choose(planner, [copy], LIMIT)[1] > 0
        planner = observe(planner, replace(PLAIN, batch=int(batch)))
    assert pairs == (asked if batch > 1 else [True] * some)
    assert sum(asked) == (1 if idle > RESTING else some)
