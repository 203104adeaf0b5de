"""Entrants take turns on the same prompts, each stopped while another is measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from benchmarks.speculation_lineup import Entrant
from benchmarks.subjects.process import Subject, SubjectFailed

WARM_UP_TOKENS = 8
Prompts = Sequence[Sequence[int]]


class Contest:
    """answers: by entrant and question, what each round's answer said: seconds, tokens and, of ours, counts. A peer
    that fails is reported and left out of the rest; if ours fails, the contest does."""

    def __init__(self, entrants: Sequence[Entrant], subjects: Mapping[str, Subject]) -> None:
        self.entrants = list(entrants)
        self.answers: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._subjects = subjects
        self._turn = 0

    def warm_up(self, prompts: Prompts) -> None:
        """One after another, so that whoever keeps what it computed of a prompt has it from the first round on."""
        for entrant in list(self.entrants):
            for prompt in prompts:
                if entrant in self.entrants:
                    self._ask(entrant, [prompt], WARM_UP_TOKENS)

    def round(self, question: str, prompts: Prompts, new_tokens: int) -> None:
        """All entrants, in another order each time that has nothing to do with the question: a rotation would meet
        the same question with the same order in every round."""
        self._turn += 1
        for entrant in Random(self._turn).sample(self.entrants, len(self.entrants)):
            answer = self._ask(entrant, prompts, new_tokens)
            if answer is not None:
                lengths = {len(tokens) for tokens in answer["tokens"]}
                assert lengths == {new_tokens}, f"{entrant.name} gave {lengths} tokens, not {new_tokens}"
                self.answers.setdefault((entrant.name, question), []).append(answer)

    def run(self, names: Sequence[str], prompts: Prompts, new_tokens: int, rounds: int) -> None:
        """A warm-up, then `rounds` rounds of one prompt after the other. names: of the prompts."""
        self.warm_up(prompts)
        for number in range(rounds):
            for name, prompt in zip(names, prompts, strict=True):
                self.round(name, [prompt], new_tokens)
            say(f"round {number + 1} of {rounds}")

    def seconds(self, name: str, question: str) -> float:
        """The median round."""
        return median(float(answer["seconds"]) for answer in self.answers[name, question])

    def rate(self, name: str, questions: Sequence[str]) -> float | None:
        """Tokens a second over these questions; None where it did not answer all of them."""
        if not all((name, question) in self.answers for question in questions):
            return None
        tokens = sum(sum(map(len, self.answers[name, question][0]["tokens"])) for question in questions)
        return tokens / sum(self.seconds(name, question) for question in questions)

    def total(self, name: str, questions: Sequence[str], count: str) -> float:
        """Of one of the counts that our answers carry, over all rounds."""
        return float(sum(answer[count] for q in questions for answer in self.answers.get((name, q), [])))

    def _ask(self, entrant: Entrant, prompts: Prompts, new_tokens: int) -> dict[str, Any] | None:
        try:
            asked = [list(prompt) for prompt in prompts]
            return self._subjects[entrant.subject].ask(
                "generate", prompts=asked, new_tokens=new_tokens, **entrant.arguments
            )
        except SubjectFailed as failure:
            if entrant.is_ours:
                raise
            say(f"left out from here on: {failure}")
            self.entrants = [one for one in self.entrants if one.subject != entrant.subject]
            return None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
