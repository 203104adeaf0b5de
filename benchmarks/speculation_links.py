"""Speculation over a longer line to the drafter, and under load: `--rtt` and `--sessions`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.report import Row
from benchmarks.speculation_beds import Prepared
from benchmarks.speculation_contest import Contest, Prompts, say
from benchmarks.speculation_lineup import AUTO, PLAIN, Entrant, our_entry
from benchmarks.subjects.lineup import OURS, started
from benchmarks.subjects.process import Subject

ROUND_TRIPS = (0.0, 0.001, 0.005, 0.02, 0.05)
GRID = (1, 2, 4, 6, 8, 12)
QUICK_GRID = (2, 4)
LOAD_SECONDS = 30.0
PLANNER = "k by the planner"


def round_trips(
    prepared: Prepared, drafter: str, rounds: int, logs: Path, grid: Sequence[int] = GRID,
    trips: Sequence[float] = ROUND_TRIPS,
) -> list[Row]:  # fmt: skip
    """One drafter behind each round trip in turn: the planner's k beside every fixed k and beside target-only, on the
    first prompt of each domain. Each round trip has a cluster of its own: lines do not change their length from one
    request to the next, and what a coordinator learned of one would be held against another."""
    bed = prepared.bed
    firsts = {question.domain: number for number, question in reversed(list(enumerate(bed.questions)))}
    chosen = sorted(firsts.values())
    names, prompts = [bed.questions[i].name for i in chosen], [prepared.prompts[i] for i in chosen]
    rows = []
    for trip in trips:
        with started([our_entry(prepared, logs)], logs) as subjects:
            contest = Contest(_entrants(drafter, trip, grid), subjects)
            contest.run(names, prompts, bed.new_tokens, rounds)
        say(f"round trip {1e3 * trip:g} ms")
        rows += rows_of_round_trips(contest, names, grid, [trip])
    return rows


def _entrants(drafter: str, trip: float, grid: Sequence[int]) -> list[Entrant]:
    line = {"round_trip": trip}
    asked = {**line, "drafter": drafter} if drafter else line
    return [
        Entrant(named(PLAIN, trip), OURS, {**line, "num_draft_tokens": 0}),
        *(Entrant(named(f"k = {k}", trip), OURS, {**asked, "num_draft_tokens": k}) for k in grid),
        Entrant(named(PLANNER, trip), OURS, asked),
    ]


def rows_of_round_trips(
    contest: Contest, names: Sequence[str], grid: Sequence[int], trips: Sequence[float]
) -> list[Row]:
    rows = []
    for trip in trips:
        measure = f"round trip {1e3 * trip:g} ms"
        rates = {
            subject: contest.rate(named(subject, trip), names) or 0.0
            for subject in (PLAIN, PLANNER, *(f"k = {k}" for k in grid))
        }
        best = max((f"k = {k}" for k in grid), key=lambda subject: rates[subject])
        rows += [Row(measure, one, rate, "tokens/s", PLAIN, rates[PLAIN]) for one, rate in rates.items()]
        least = max(best, PLAIN, key=lambda subject: rates[subject])
        rows.append(Row(measure, PLANNER, rates[PLANNER], "tokens/s", f"best fixed: {least}", rates[least]))
    return rows


def sessions(prepared: Prepared, counts: Sequence[int], rounds: int, logs: Path) -> list[Row]:
    """`auto` beside target-only, tokens a second of all sessions together: with so many of them at all times, and for
    so many requests that come at once, from then to the end of the last."""
    rows = []
    prompts, new_tokens = prepared.prompts, prepared.bed.new_tokens
    entrants = [Entrant(PLAIN, OURS, {"num_draft_tokens": 0}), Entrant(AUTO, OURS)]
    with started([our_entry(prepared, logs)], logs) as subjects:
        contest = Contest(entrants, subjects)
        contest.warm_up(prompts)
        for count in counts:
            rates: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
            together = [prompts[i % len(prompts)] for i in range(count)]
            for number in range(rounds):
                for entrant in entrants[:: (-1) ** number]:
                    rates[entrant.name].append(_loaded(subjects[OURS], entrant, prompts, new_tokens, count))
                contest.round(f"{count}", together, new_tokens)
                say(f"{count} sessions: round {number + 1} of {rounds}: {rates}")
            steady = {name: median(values) for name, values in rates.items()}
            rows.append(Row(f"{count} sessions all the time", AUTO, steady[AUTO], "tokens/s", PLAIN, steady[PLAIN]))
            plain, auto = contest.rate(PLAIN, [f"{count}"]), contest.rate(AUTO, [f"{count}"])
            assert plain is not None and auto is not None, "ours answers or fails"
            rows.append(Row(f"{count} requests, to the last one's end", AUTO, auto, "tokens/s", PLAIN, plain))
    return rows


def _loaded(ours: Subject, entrant: Entrant, prompts: Prompts, new_tokens: int, count: int) -> float:
    asked = [list(prompt) for prompt in prompts]
    answer = ours.ask(
        "load", prompts=asked, new_tokens=new_tokens, sessions=count, seconds=LOAD_SECONDS, **entrant.arguments
    )
    return float(answer["count"]) / float(answer["seconds"])


def named(subject: str, trip: float) -> str:
    return f"{subject}, {1e3 * trip:g} ms"
