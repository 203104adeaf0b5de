"""What is simulated, and what comes of it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

COORDINATOR, DRAFT, TARGET = "coordinator", "draft", "target"


@dataclass(frozen=True, slots=True)
class Design:
    """Which pools there are. paired: every pod of the one pool holds a verifier, and a drafter for its own sessions,
    and scales as verifiers do; drafts: False: nobody drafts."""

    name: str
    paired: bool = False
    drafts: bool = True

    @property
    def pools(self) -> tuple[str, ...]:
        return (TARGET, DRAFT, COORDINATOR) if self.drafts and not self.paired else (TARGET, COORDINATOR)


SEPARATE, PAIRED = Design("separate pools"), Design("one co-scaled pool", paired=True)
PLAIN = Design("target only", drafts=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """kv_tokens, max_sessions: of a verifier, as k8s/base and the service's default have them; max_draft: draft tokens
    of a cycle at most; fixed: replicas by pool, which then no scaler touches."""

    kv_tokens: int = 32768
    max_sessions: int = 1024
    max_draft: int = 16
    fixed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """At one scrape. pods: by pool, those that are ready and all that are paid for; wait, draft_wait: means of the
    messages since the last scrape; messages: verifications since then; streams: generations in progress."""

    time: float
    pods: Mapping[str, tuple[int, int]]
    wait: float
    draft_wait: float
    messages: int
    streams: int
    tokens: int


def _seconds() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Outcome:
    """waits, draft_waits: of every message; paces: tokens a second of each generation, from its arrival to its last
    token; pod_seconds: paid for, by pool; changes: of replicas by a scaler, by pool, with their times; counts: by name
    of the metric; refusals: of a session by all verifiers, after each of which it comes again."""

    design: Design
    moments: list[Moment] = field(default_factory=list)
    waits: array[float] = field(default_factory=_seconds)
    draft_waits: array[float] = field(default_factory=_seconds)
    first_tokens: array[float] = field(default_factory=_seconds)
    paces: array[float] = field(default_factory=_seconds)
    pod_seconds: dict[str, float] = field(default_factory=dict)
    changes: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    refusals: int = 0
    end: float = 0.0

    @property
    def tokens(self) -> int:
        return self.counts["specdec_num_emitted_tokens_total"]
