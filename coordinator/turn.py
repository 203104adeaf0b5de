"""What a turn was asked for, every choice effective. Stored with the session: a resume needs nothing but its id."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.core.rules import LOSSY
from specdec.core.sampling import SamplingParams

SAMPLED_RULES = frozenset({"rejection", "block", "traversal"})


@dataclass(frozen=True, slots=True)
class Turn:
    """seeded: the caller gave the seed (then the turn is verified in the y-form with coupled drafts, unless
    `verification` names a p/q rule). num_draft_tokens None: the planner decides; drafter None: auto;
    verification None: by the seed rule (contract.md, randomness), `rule` has what it comes to."""

    params: SamplingParams
    max_tokens: int
    seed: int
    seeded: bool = False
    stop: tuple[str, ...] = ()
    eos_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_draft_tokens: int | None = None
    drafter: str | None = None
    verification: str | None = None

    @property
    def sampled(self) -> bool:
        """Whether drafts are to be sampled, and such drafts judged in the p/q form; everything else is in the y-form,
        or lossy."""
        if self.params.greedy:
            return False
        return self.verification in SAMPLED_RULES or (self.verification is None and not self.seeded)

    @property
    def lossy(self) -> bool:
        """Whether the output need not have the target's law. Never unless asked for by name; greedy output is exact."""
        return self.verification in LOSSY and not self.params.greedy

    @property
    def rule(self) -> str:
        """The effective verification. Without a name a sampled draft is judged by `block` as a whole, of which
        `traversal` is the form for trees (`judging.rule_of`)."""
        if self.sampled:
            return self.verification or "block"
        return "typical" if self.lossy else "coupled"
