"""A dynamic tree beside the chain of the same head: mean acceptance length (`--trees`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Row
from benchmarks.speculation_beds import Prepared
from benchmarks.speculation_contest import Contest
from benchmarks.speculation_lineup import Entrant, our_entry
from benchmarks.subjects.lineup import OURS, started

TREE, CHAIN = "eagle2", "eagle"
NODES, DEPTH = 59, 7  # of an EAGLE-2 tree (Li et al. 2024b); the chain is as deep as the tree
TEMPERATURES = (0.0, 1.0)


def trees(
    prepared: Prepared, rounds: int, logs: Path, tree: str = TREE, chain: str = CHAIN,
    temperatures: Sequence[float] = TEMPERATURES,
) -> list[Row]:  # fmt: skip
    """Lengths are over cycles with a draft alone, so that no planner has a say."""
    with started([our_entry(prepared, logs, NODES)], logs) as subjects:
        entrants = [
            Entrant(_name(drafter, t), OURS, {"drafter": drafter, "num_draft_tokens": k, "temperature": t})
            for t in temperatures
            for drafter, k in ((chain, DEPTH), (tree, NODES))
        ]
        contest = Contest(entrants, subjects)
        names = [question.name for question in prepared.bed.questions]
        contest.run(names, prepared.prompts, prepared.bed.new_tokens, rounds)
    return rows_of_trees(contest, names, tree, chain, temperatures)


def rows_of_trees(
    contest: Contest, names: Sequence[str], tree: str, chain: str, temperatures: Sequence[float]
) -> list[Row]:
    rows = []
    for t in temperatures:
        its, base = (length(contest, _name(drafter, t), names) for drafter in (tree, chain))
        rows.append(Row("mean acceptance length", _name(tree, t), its, "tokens", _name(chain, t), base))
    return rows


def length(contest: Contest, name: str, names: Sequence[str]) -> float:
    """Tokens a cycle, of cycles that judged a draft."""
    accepted, drafts = (contest.total(name, names, count) for count in ("accepted_tokens", "drafts"))
    return 1 + accepted / drafts if drafts else 1.0


def _name(drafter: str, temperature: float) -> str:
    return f"{drafter}, T = {temperature:g}"
