"""The contest and the rows of `benchmarks.speculation`, with subjects that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from benchmarks import speculation_lineup
from benchmarks.report import Row
from benchmarks.speculation_beds import BEDS, CODE, PAIR_BED, PROSE, Prepared, quick
from benchmarks.speculation_contest import Contest
from benchmarks.speculation_lineup import AUTO, PLAIN, Entrant, our_entrants, peer_entries
from benchmarks.speculation_links import PLANNER, named, rows_of_round_trips
from benchmarks.speculation_table import beside_peers, rows_of
from benchmarks.speculation_trees import rows_of_trees
from benchmarks.subjects.lineup import OURS, VLLM, Entry
from benchmarks.subjects.process import Subject, SubjectFailed
from specdec.core.errors import ConfigError

TOKENS = 10
Speed = Callable[[list[int], Mapping[str, Any]], float]


@dataclass
class Fake:
    """speed: tokens a second of a prompt with these arguments."""

    speed: Speed
    fails_at: int = -1
    asked: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "about":
            return {"drafters": ["lm", "ngram"]}
        self.asked.append(arguments)
        if len(self.asked) == self.fails_at:
            raise SubjectFailed("gone")
        new_tokens, prompts = arguments.pop("new_tokens"), arguments.pop("prompts")
        cycles = new_tokens if arguments.get("num_draft_tokens") == 0 else new_tokens / 2
        counts = {
            "cycles": cycles,
            "drafts": cycles,
            "draft_tokens": 4 * cycles,
            "accepted_tokens": new_tokens - cycles,
        }
        return {
            "seconds": len(prompts) * new_tokens / self.speed(prompts[0], arguments),
            "tokens": [[7] * new_tokens for _ in prompts],
            **counts,
        }


def ours(prompt: list[int], arguments: Mapping[str, Any]) -> float:
    """Prompts are [domain]: code drafts well, prose badly; auto is the better of both."""
    drafted = 20.0 if prompt == [0] else 5.0
    if arguments.get("num_draft_tokens") == 0:
        return 10.0
    return drafted if arguments.get("drafter") else max(10.0, drafted)


def contest(peers: Mapping[str, Fake]) -> tuple[Contest, Prepared, Fake]:
    bed = quick(PAIR_BED, TOKENS)
    mine = Fake(ours)
    subjects = cast(dict[str, Subject], {OURS: mine, **peers})
    entrants = [*our_entrants(subjects[OURS], ["lm"]), *(Entrant(name, name) for name in peers)]
    prepared = Prepared(bed, "", None, tuple((int(q.domain == PROSE),) for q in bed.questions))
    return Contest(entrants, subjects), prepared, mine


def run(one: Contest, prepared: Prepared, rounds: int = 2) -> dict[tuple[str, str, str], Row]:
    for _ in range(rounds):
        for question, prompt in zip(prepared.bed.questions, prepared.prompts, strict=True):
            one.round(question.name, [prompt], TOKENS)
    return {(row.measure, row.subject, row.baseline): row for row in rows_of(prepared, one)}


def test_rates_are_over_target_only_by_domain_and_over_all() -> None:
    one, prepared, _ = contest({"vLLM": Fake(lambda *_: 8.0)})
    rows = run(one, prepared)
    assert rows[f"{CODE} prompts", f"{OURS}, lm", PLAIN].ratio == pytest.approx(2.0)
    assert rows[f"{PROSE} prompts", f"{OURS}, lm", PLAIN].ratio == pytest.approx(0.5)
    assert rows["all prompts", f"{OURS}, lm", PLAIN].value == pytest.approx(2 * TOKENS / (TOKENS / 20 + TOKENS / 5))
    assert rows[f"prompt {prepared.bed.questions[0].name}", AUTO, PLAIN].ratio == pytest.approx(2.0)
    assert rows["our best, all prompts", AUTO, "vLLM"].ratio == pytest.approx((20 / 1.5) / 8)
    assert rows["mean acceptance length", f"{OURS}, lm", ""].value == pytest.approx(2.0)


def test_everyone_answers_the_same_and_nobody_always_comes_first() -> None:
    one, prepared, mine = contest({"vLLM": Fake(lambda *_: 8.0)})
    run(one, prepared, rounds=2)
    assert len(one.answers) == 4 * 2 and {len(answers) for answers in one.answers.values()} == {2}
    assert len(mine.asked) == 3 * 2 * 2
    first = [asked.get("num_draft_tokens", asked.get("drafter", "auto")) for asked in mine.asked[::3]]
    assert len(set(first)) > 1


def test_a_peer_that_fails_is_left_out_and_ours_is_not_forgiven() -> None:
    one, prepared, _ = contest({"vLLM": Fake(lambda *_: 8.0, fails_at=2), "llama.cpp": Fake(lambda *_: 4.0)})
    rows = run(one, prepared)
    assert not any(subject == "vLLM" for (measure, subject, _) in rows if measure == "all prompts")
    assert ("our best, all prompts", AUTO, "llama.cpp's best") in rows
    failing = Contest([Entrant(PLAIN, OURS)], cast(dict[str, Subject], {OURS: Fake(ours, fails_at=1)}))
    with pytest.raises(SubjectFailed):
        failing.round("x", [[0]], TOKENS)


def test_one_way_of_a_peer_can_be_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, prepared, _ = contest({})
    ways = [Entry(name, []) for name in (VLLM, f"{VLLM}, draft", f"{VLLM}, n-gram")]
    monkeypatch.setattr(speculation_lineup, "installed", lambda _: True)
    monkeypatch.setattr(speculation_lineup, "_MAKERS", {"vllm": lambda *_: ways})
    assert peer_entries(prepared, ["vllm"]) == ways
    assert peer_entries(prepared, ["vllm:draft"]) == [ways[1]]
    with pytest.raises(ConfigError, match=f"choose from {VLLM}, {VLLM}, draft"):
        peer_entries(prepared, ["vllm:medusa"])


def test_without_peers_there_is_nothing_to_be_beside() -> None:
    one, prepared, _ = contest({})
    run(one, prepared)
    assert beside_peers(one, "all prompts", [q.name for q in prepared.bed.questions]) == []


def test_the_planner_is_held_against_the_best_fixed_k_of_its_round_trip() -> None:
    speeds = {"k = 2": 14.0, "k = 4": 9.0, PLANNER: 13.0, PLAIN: 10.0}

    def speed(prompt: list[int], arguments: Mapping[str, Any]) -> float:
        k = arguments.get("num_draft_tokens")
        subject = PLANNER if k is None else PLAIN if k == 0 else f"k = {k}"
        return speeds[subject] if arguments["round_trip"] < 0.01 else min(10.0, speeds[subject])

    entrants = [
        Entrant(named(subject, trip), OURS, {"round_trip": trip, **fields})
        for trip in (0.0, 0.05)
        for subject, fields in (
            (PLAIN, {"num_draft_tokens": 0}), (PLANNER, {}), ("k = 2", {"num_draft_tokens": 2}),
            ("k = 4", {"num_draft_tokens": 4}),
        )
    ]  # fmt: skip
    one = Contest(entrants, cast(dict[str, Subject], {OURS: Fake(speed)}))
    one.round("q", [[0]], TOKENS)
    rows = rows_of_round_trips(one, ["q"], (2, 4), (0.0, 0.05))
    best = {row.measure: row for row in rows if row.baseline.startswith("best fixed")}
    assert best["round trip 0 ms"].baseline == "best fixed: k = 2"
    assert best["round trip 0 ms"].ratio == pytest.approx(13 / 14)
    assert best["round trip 50 ms"].ratio == pytest.approx(1.0)


def test_trees_are_compared_by_cycles_with_a_draft() -> None:
    one = Contest([], {})
    one.answers = {
        ("eagle2, T = 0", "q"): [{"accepted_tokens": 30, "drafts": 10}],
        ("eagle, T = 0", "q"): [{"accepted_tokens": 20, "drafts": 10}],
    }
    [row] = rows_of_trees(one, ["q"], "eagle2", "eagle", (0.0,))
    assert (row.value, row.baseline_value) == (4.0, 3.0)


def test_beds_have_the_prompts_that_the_figures_are_about() -> None:
    domains = [question.domain for question in PAIR_BED.questions]
    assert (domains.count(CODE), domains.count(PROSE), PAIR_BED.new_tokens) == (3, 2, 96)
    assert set(BEDS["smollm2"].domains) == {"chat", "code", "copying", "lists"}
    names = [question.name for bed in BEDS.values() for question in bed.questions]
    assert len(names) == len(set(names))
