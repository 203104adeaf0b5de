"""The test beds of `benchmarks.speculation`: a target, its drafts, and prompts by domain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.models import prepared
from coordinator.session import ChatMessage
from coordinator.tokenizer import TextCodec
from specdec.edge.draft_entries import SHIPPED as MODELS
from specdec.edge.profile.prompts import BUILT_IN
from specdec.lm.prepare import SMOLLM2

CODE, PROSE = "code", "prose"
SHIPPED = {"lm": "lm", "medusa": "medusa", "eagle": "eagle", "eagle2": "eagle"}  # drafter: ending of its folder


@dataclass(frozen=True, slots=True)
class Question:
    """domain: its group in the table; name: its own."""

    domain: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Bed:
    """target, draft: as `benchmarks.models.prepared` takes them; draft None: no peer can use what drafts ours. ours:
    --draft of `specdec up`, with {draft} for the draft's folder; flags: more of them. new_tokens: of an answer.
    chain: draft tokens of peers, which do not plan."""

    name: str
    target: str
    draft: str | None
    ours: str
    questions: tuple[Question, ...]
    new_tokens: int
    flags: tuple[str, ...] = ()
    chain: int = 4

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(question.domain for question in self.questions))


PAIR_BED = Bed(
    "pair",
    "qwen1.5b",
    "qwen0.5b",
    "lm:{draft},suffix",
    (
        Question(
            CODE, "primes", "Write a Python function that returns all primes below n with a sieve, with comments."
        ),
        Question(CODE, "cache", "Write a Python class for an LRU cache with get and put in constant time."),
        Question(CODE, "sql", "Write an SQL query that finds, for each department, the three best paid employees."),
        Question(PROSE, "explanation", "Explain to a beginner how a hash table works and when it becomes slow."),
        Question(PROSE, "story", "Write a short story about a lighthouse keeper who finds a message in a bottle."),
    ),
    new_tokens=96,
    flags=("--head-ids", "first:65536"),
)
SMOLLM2_BED = Bed(
    SMOLLM2,
    SMOLLM2,
    None,
    "suffix,lm,medusa,eagle,eagle2",
    tuple(
        Question(prompt.domain, f"{prompt.domain} {number % 3 + 1}", prompt.messages[0][1])
        for number, prompt in enumerate(BUILT_IN)
    ),
    new_tokens=96,
)
BEDS = {bed.name: bed for bed in (PAIR_BED, SMOLLM2_BED)}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A bed whose models are ready. prompts: token ids of each question, in the target's chat template."""

    bed: Bed
    target: str
    draft: str | None
    prompts: tuple[tuple[int, ...], ...]

    @property
    def ours(self) -> str:
        """--draft, without the shipped drafts that are not there."""
        parts = self.bed.ours.replace("{draft}", self.draft or "").split(",")
        folder = MODELS / f"{Path(self.target).name.partition('.')[0].lower()}-"
        return ",".join(p for p in parts if p not in SHIPPED or Path(f"{folder}{SHIPPED[p]}").is_dir())

    @property
    def longest(self) -> int:
        return max(map(len, self.prompts))


def prepare_bed(bed: Bed) -> Prepared:
    """Makes its models ready. Raises ConfigError."""
    target = prepared(bed.target)
    codec = TextCodec.load(target)
    prompts = [tuple(codec.chat_prompt_ids([ChatMessage("user", q.text)])) for q in bed.questions]
    return Prepared(bed, target, prepared(bed.draft) if bed.draft else None, tuple(prompts))


def quick(bed: Bed, new_tokens: int) -> Bed:
    """One question of each domain, short answers."""
    first = {question.domain: question for question in reversed(bed.questions)}
    return replace(bed, questions=tuple(first.values())[::-1], new_tokens=new_tokens)
