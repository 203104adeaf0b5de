"""What `benchmarks.engine` measures, and the order in which its subjects take turns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.subjects.lineup import ROOT, Entry
from benchmarks.subjects.process import Subject, SubjectFailed

LAW_NODES = 9
STEP_CONTEXT = 256  # at which rows are compared
_STRIDE = 61  # tokens between the starts of two prompts


@dataclass(frozen=True, slots=True)
class Plan:
    """prompt, new_tokens: of a stream. streams: (streams together, rounds). prompts: (tokens, rounds) for the time to
    the first token, `prompt` among them. rows: of a step at STEP_CONTEXT; contexts: of a step of one row. repeats: of
    every step."""

    prompt: int
    new_tokens: int
    streams: tuple[tuple[int, int], ...]
    prompts: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    repeats: int

    @property
    def step_points(self) -> list[tuple[int, int]]:
        points = [(rows, STEP_CONTEXT) for rows in self.rows] + [(1, context) for context in self.contexts]
        return list(dict.fromkeys(points))

    @property
    def most_streams(self) -> int:
        return max(streams for streams, _ in self.streams)

    @property
    def kv_tokens(self) -> int:
        """Room for all streams together, and for the sessions of all steps together."""
        together = self.most_streams * (self.prompt + self.new_tokens)
        steps = sum(context + rows for rows, context in self.step_points)
        longest = max(length for length, _ in self.prompts)
        return -(-max(together, steps, longest) // 1024) * 1024 + 1024


FULL = Plan(
    prompt=32,
    new_tokens=128,
    streams=((1, 3), (8, 2), (32, 1)),
    prompts=((32, 3), (256, 1), (1024, 1), (4096, 1)),
    rows=(1, 2, 4, 8, 16, 32, 64),
    contexts=(128, 256, 1024, 4096),
    repeats=15,
)
QUICK = Plan(
    prompt=32,
    new_tokens=32,
    streams=((1, 3), (8, 1)),
    prompts=((32, 3), (256, 1)),
    rows=(1, 8),
    contexts=(128, 256, 1024),
    repeats=7,
)


@dataclass(slots=True)
class Samples:
    """Seconds, by subject and what was done; peak, libraries, kv_bytes: bytes, by subject."""

    generate: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    first: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    steps: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)
    laws: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    profile: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    libraries: dict[str, int] = field(default_factory=dict)
    kv_bytes: dict[str, int] = field(default_factory=dict)


class Prompts:
    """Slices of this repository's text, no two with the same start: a prefix cache finds nothing."""

    def __init__(self, folder: str) -> None:
        text = "".join(file.read_text() for file in _texts())
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self._ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        self._next = 0

    def take(self, count: int, length: int) -> list[list[int]]:
        starts = [(self._next + i * _STRIDE) % (len(self._ids) - length) for i in range(count)]
        self._next += count * _STRIDE
        return [self._ids[start : start + length] for start in starts]


def _texts() -> list[Path]:
    folders = (ROOT / "docs").glob("*.md"), (ROOT / "specdec" / "core").glob("*.py")
    return [ROOT / "README.md", *(file for files in folders for file in sorted(files))]


class Run:
    """One run: all subjects in turn, measure by measure, round by round. A peer that fails is reported and left out of
    the rest; if ours fails, the run does."""

    def __init__(self, plan: Plan, entries: Sequence[Entry], subjects: Mapping[str, Subject], prompts: Prompts) -> None:
        self.samples = Samples()
        self._plan = plan
        self._entries = list(entries)
        self._subjects = subjects
        self._prompts = prompts

    def everything(self, *, profile: bool = False) -> Samples:
        self._warm_up()
        for streams, rounds in self._plan.streams:
            for number in range(rounds):
                self._round(self.samples.generate, streams, self._plan.prompt, streams, self._plan.new_tokens)
                _say(f"{streams} streams: round {number + 1} of {rounds}")
        for length, rounds in self._plan.prompts:
            for number in range(rounds):
                self._round(self.samples.first, length, length, 1, 1)
                _say(f"prompt of {length}: round {number + 1} of {rounds}")
        for entry in [e for e in self._entries if e.is_ours]:
            self._only_ours(entry.name, profile)
        self._memory()
        return self.samples

    def _warm_up(self) -> None:
        for streams, _ in self._plan.streams:
            prompts = self._prompts.take(streams, self._plan.prompt)
            for name in [e.name for e in self._entries]:
                self._ask(name, "generate", prompts=prompts, new_tokens=2)

    def _round(
        self, into: dict[tuple[str, int], list[float]], key: int, length: int, streams: int, new_tokens: int
    ) -> None:
        """The same prompts for all subjects, never used before."""
        prompts = self._prompts.take(streams, length)
        for name in [e.name for e in self._entries]:
            answer = self._ask(name, "generate", prompts=prompts, new_tokens=new_tokens)
            if answer is not None:
                assert all(len(t) == new_tokens for t in answer["tokens"]), f"{name} gave another number of tokens"
                into.setdefault((name, key), []).append(answer["seconds"])

    def _only_ours(self, name: str, profile: bool) -> None:
        plan, subject = self._plan, self._subjects[name]
        points = plan.step_points
        answer = subject.ask("steps", points=points, repeats=plan.repeats)
        for (rows, context), seconds in zip(points, answer["seconds"], strict=True):
            self.samples.steps[name, rows, context] = seconds
        self.samples.laws[name] = subject.ask("laws", nodes=LAW_NODES, context=STEP_CONTEXT, repeats=plan.repeats)
        if profile:
            self.samples.profile[name] = subject.ask("profile", rows=1, context=STEP_CONTEXT, repeats=plan.repeats)
        self.samples.kv_bytes[name] = subject.ask("about")["kv_bytes"]
        _say(f"{name}: steps and laws")

    def _memory(self) -> None:
        for entry in list(self._entries):
            if answer := self._ask(entry.name, "memory"):
                self.samples.peak[entry.name] = answer["peak"]
                self.samples.libraries[entry.name] = answer.get("libraries", self._subjects[entry.name].libraries)
                budget = next(iter(self.samples.kv_bytes.values())) if entry.kv_bytes is None else entry.kv_bytes
                self.samples.kv_bytes.setdefault(entry.name, budget)

    def _ask(self, name: str, do: str, **arguments: Any) -> dict[str, Any] | None:
        try:
            return self._subjects[name].ask(do, **arguments)
        except SubjectFailed as failure:
            entry = next(e for e in self._entries if e.name == name)
            if entry.is_ours:
                raise
            _say(f"left out from here on: {failure}")
            self._entries.remove(entry)
            return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
