"""Greedy tokens of every network, chunk size and draft beside those of `transformers`, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine_plan import Prompts
from benchmarks.report import Row
from benchmarks.subjects.lineup import Setting, generate, ours, started

PROMPT, NEW_TOKENS, STREAMS = 100, 48, 4
# How the same tokens are asked for: all streams together, or with prompts cut into pieces, or beside wrong guesses.
WAYS: dict[str, dict[str, object]] = {
    "together": {},
    "alone": {},
    "chunks of 16": {"token_budget": 16},
    "with drafts": {"drafts": True},
}


def identity(setting: Setting, networks: Sequence[str], prompts: Prompts, logs: Path) -> list[Row]:
    """A row per network and way: the share of tokens that are the same, up to the first that is not.

    A model's two best tokens may be so close that rounding decides; such a stream counts for less than 1, and the
    networks are told apart by rows that all differ."""
    taken = prompts.take(STREAMS, PROMPT)
    entries = [generate(setting), *(ours(setting, network) for network in networks)]
    rows = []
    with started(entries, logs) as subjects:
        truths = [
            subjects[entries[0].name].ask("generate", prompts=[prompt], new_tokens=NEW_TOKENS)["tokens"][0]
            for prompt in taken
        ]
        for entry in entries[1:]:
            for way, arguments in WAYS.items():
                batches = [[prompt] for prompt in taken] if way == "alone" else [taken]
                found = [
                    tokens
                    for batch in batches
                    for tokens in subjects[entry.name].ask(
                        "generate", prompts=batch, new_tokens=NEW_TOKENS, **arguments
                    )["tokens"]
                ]
                share = same_share(found, truths)
                rows.append(Row(f"same tokens, float32, {way}", entry.name, share, "", entries[0].name, 1.0))
    return rows


def same_share(found: Sequence[Sequence[int]], truths: Sequence[Sequence[int]]) -> float:
    """Tokens before the first difference of each stream, over all."""
    same = 0
    for ours_, theirs in zip(found, truths, strict=True):
        assert len(ours_) == len(theirs), "another number of tokens"
        differs = (i for i, (a, b) in enumerate(zip(ours_, theirs, strict=True)) if a != b)
        same += next(differs, len(theirs))
    return same / sum(map(len, truths))
