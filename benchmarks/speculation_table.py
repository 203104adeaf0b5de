"""The table: ours with each drafter and by itself, beside our own target-only and all peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from benchmarks.report import Row
from benchmarks.speculation_beds import Prepared
from benchmarks.speculation_contest import Contest
from benchmarks.speculation_lineup import AUTO, PLAIN, Entrant, our_entrants, our_entry, peer_entrants, peer_entries
from benchmarks.subjects.lineup import LLAMACPP, OURS, VLLM, started
from benchmarks.subjects.process import Subject

ALL = "all"


def measured(prepared: Prepared, peers: Sequence[str], drafters: Sequence[str], rounds: int, logs: Path) -> list[Row]:
    """Raises SubjectFailed where ours fails, ConfigError."""
    others = peer_entries(prepared, peers)
    with started([our_entry(prepared, logs), *others], logs) as subjects:
        entrants = [*our_entrants(subjects[OURS], drafters), *peer_entrants(prepared, others)]
        contest = Contest(entrants, subjects)
        names = [question.name for question in prepared.bed.questions]
        contest.run(names, prepared.prompts, prepared.bed.new_tokens, rounds)
        drafts = [row for entry in others for row in _drafts(entry.name, contest, subjects)]
    return [*rows_of(prepared, contest), *drafts]


def rows_of(prepared: Prepared, contest: Contest) -> list[Row]:
    bed = prepared.bed
    groups = {ALL: [q.name for q in bed.questions]}
    groups |= {domain: [q.name for q in bed.questions if q.domain == domain] for domain in bed.domains}
    rows = list(chain.from_iterable(speeds(contest, f"{group} prompts", names) for group, names in groups.items()))
    rows += chain.from_iterable(beside_peers(contest, f"{group} prompts", names) for group, names in groups.items())
    for question in groups[ALL]:
        rows += speeds(contest, f"prompt {question}", [question], only=(AUTO,))
    for entrant in (e for e in contest.entrants if e.is_ours):
        rows += lengths(contest, entrant, groups[ALL])
    return rows


def speeds(contest: Contest, measure: str, names: Sequence[str], only: Sequence[str] = ()) -> list[Row]:
    """Tokens a second of everyone, over our target-only."""
    base = contest.rate(PLAIN, names)
    rates = {e.name: contest.rate(e.name, names) for e in contest.entrants if not only or e.name in only}
    return [Row(measure, name, rate, "tokens/s", PLAIN, base) for name, rate in rates.items() if rate is not None]


def beside_peers(contest: Contest, measure: str, names: Sequence[str]) -> list[Row]:
    """Our best over each peer that speculates, and over llama.cpp's and vLLM's best."""
    rates = {e.name: rate for e in contest.entrants if (rate := contest.rate(e.name, names)) is not None}
    ours = {name: rate for name, rate in rates.items() if name.startswith(OURS)}
    others = {name: rate for name, rate in rates.items() if name not in ours}
    if not ours or not others:
        return []
    best = max(ours, key=lambda name: ours[name])
    rows = [Row(f"our best, {measure}", best, ours[best], "tokens/s", name, rate) for name, rate in others.items()]
    for peer in (LLAMACPP, VLLM):
        its = [rate for name, rate in others.items() if name.startswith(peer)]
        if its:
            rows.append(Row(f"our best, {measure}", best, ours[best], "tokens/s", f"{peer}'s best", max(its)))
    return rows


def lengths(contest: Contest, entrant: Entrant, names: Sequence[str]) -> list[Row]:
    """Mean acceptance length and acceptance rate, of ours."""
    cycles, drafts, drafted, accepted = (
        contest.total(entrant.name, names, count) for count in ("cycles", "drafts", "draft_tokens", "accepted_tokens")
    )
    if not drafts:
        return []
    return [
        Row("mean acceptance length", entrant.name, 1 + accepted / cycles, "tokens"),
        Row("cycles with a draft", entrant.name, drafts, "cycles", "cycles", cycles),
        Row("accepted draft tokens", entrant.name, accepted, "tokens", "draft tokens", drafted),
    ]


def _drafts(name: str, contest: Contest, subjects: Mapping[str, Subject]) -> list[Row]:
    """That a peer used its draft at all."""
    entrants = [e for e in contest.entrants if e.subject == name and "," in e.name and "way" not in e.arguments]
    if not entrants:
        return []
    answer = subjects[name].ask("drafts")
    return [Row("accepted draft tokens", name, answer["accepted"], "tokens", "draft tokens", answer["drafted"])]
