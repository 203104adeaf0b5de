"""Text that the target writes itself, without any download: a user's turn sampled from the chat template's opening
(Xu et al. 2024, "Magpie"), then an answer. A drafter is judged on the target's own outputs, so it learns from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specdec.core.randomness import choice_seed, target_key
from specdec.core.sampling import SamplingParams
from specdec.lm.answers import answer_all
from specdec.lm.histories import Histories
from specdec.lm.kv import KVSequence
from specdec.lm.question import Answer, Question
from specdec.lm.runner import Runner, Segment

_MARK = "\u2043mark\u2043"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What stands around a user's turn: opening before it, bridge between it and the answer. end_ids end a turn."""

    opening: tuple[int, ...]
    bridge: tuple[int, ...]
    end_ids: tuple[int, ...]

    @staticmethod
    def of(tokenizer: Any, end_ids: tuple[int, ...]) -> ChatFrame:
        """tokenizer: of `transformers`. Without a chat template the answer simply goes on from the text before."""
        if not tokenizer.chat_template:
            start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else end_ids[0]
            return ChatFrame((start,), (), end_ids)
        asked = [{"role": "user", "content": _MARK}]
        text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        before, _, after = text.partition(_MARK)
        opening, bridge = (tokenizer.encode(part, add_special_tokens=False) for part in (before, after))
        return ChatFrame(tuple(opening), tuple(bridge), end_ids)


@dataclass(frozen=True, slots=True)
class Conversation:
    """ids: all tokens, the template's included; answer: index of the answer's first token; temperature: of the answer,
    the user's turn was sampled at 1."""

    ids: tuple[int, ...]
    answer: int
    temperature: float

    def line(self) -> str:
        return json.dumps({"ids": self.ids, "answer": self.answer, "temperature": self.temperature}) + "\n"


@dataclass(frozen=True, slots=True)
class WritingPlan:
    """temperatures: of answers, in turn. user_tokens, answer_tokens: at most. streams: conversations at a time."""

    seed: int = 0
    temperatures: tuple[float, ...] = (1.0, 1.0, 0.6, 1.0, 0.0)
    user_tokens: int = 96
    answer_tokens: int = 384
    streams: int = 96


@dataclass(eq=False)
class _Stream:
    """One conversation in the making."""

    number: int
    sequence: KVSequence
    seed: int
    temperature: float
    ids: list[int]
    answer: int = 0
    known: list[int] = field(default_factory=list)  # tokens that are not sampled, to be computed next

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature if self.answer else 1.0)


def write(runner: Runner, frame: ChatFrame, plan: WritingPlan, first: int) -> Iterator[Conversation]:
    """Conversations number `first`, `first` + 1 and so on, without end, in the order in which they finish. Each is a
    function of (seed, number) up to the arithmetic of the model."""
    numbers = iter(range(first, 1 << 62))
    streams = [_begin(runner, frame, plan, next(numbers)) for _ in range(plan.streams)]
    while True:
        segments = [Segment(s.sequence, np.array(_pending(s), dtype=np.uint32), wanted=1) for s in streams]
        logits = runner.forward(segments)
        questions = [
            Question(part, Histories(np.zeros(0, np.uint32), 0, ((),)), s.params, keys=[target_key(s.seed, len(s.ids))])
            for s, part in zip(streams, logits, strict=True)
        ]
        for i, answer in enumerate(answer_all(questions, runner.loaded.vocab_size)):
            assert isinstance(answer, Answer), f"the target's law could not be formed: {answer}"
            if (done := _advance(streams[i], int(answer.drawn[0]), frame, plan)) is not None:
                streams[i].sequence.release()
                streams[i] = _begin(runner, frame, plan, next(numbers))
                yield done


def _begin(runner: Runner, frame: ChatFrame, plan: WritingPlan, number: int) -> _Stream:
    seed = choice_seed(plan.seed, number + 1)
    temperature = plan.temperatures[number % len(plan.temperatures)]
    started = _Stream(number, runner.new_sequence(), seed, temperature, list(frame.opening))
    started.sequence.adopt(np.array(frame.opening[:-1], dtype=np.uint32))
    return started


def _pending(s: _Stream) -> list[int]:
    return s.ids[s.sequence.num_context :]


def _advance(s: _Stream, token: int, frame: ChatFrame, plan: WritingPlan) -> Conversation | None:
    """Takes the sampled token in; the conversation, once its answer has ended."""
    ended = token in frame.end_ids
    if not s.answer:
        turn = len(s.ids) - len(frame.opening)
        if not ended:
            s.ids.append(token)
        if ended or turn + 1 >= plan.user_tokens:
            s.ids.extend(frame.bridge)
            s.answer = len(s.ids)
        return None
    s.ids.append(token)
    if ended or len(s.ids) - s.answer >= plan.answer_tokens:
        return Conversation(tuple(s.ids), s.answer, s.temperature)
    return None


def append_to(path: Path, conversations: Iterator[Conversation], tokens: int) -> Iterator[int]:
    """Appends to a JSONL file until it holds `tokens` tokens; yields how many it holds after each. What a killed run
    left behind counts: writing goes on from there."""
    held = sum(len(c.ids) for c in read(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        while held < tokens:
            conversation = next(conversations)
            file.write(conversation.line())
            file.flush()
            held += len(conversation.ids)
            yield held


def read(path: Path) -> list[Conversation]:
    """All whole lines of the file; none if there is no file."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return [Conversation(tuple(d["ids"]), d["answer"], d["temperature"]) for d in map(json.loads, lines)]
