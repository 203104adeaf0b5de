"""What a turn was asked for, every choice effective. Stored with the session: a resume needs nothing but its id."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Turn:
    """seeded: the caller gave the seed (then the turn is verified in the y-form with coupled drafts, unless
    `verification` names a p/q rule). num_draft_tokens None: the planner decides; drafter None: auto;
    verification None: by the seed rule (contract.md, randomness)."""

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
        """Whether sampled drafts are judged by the p/q form; everything else is judged by the y-form."""
        if self.params.greedy:
            return False
        return self.verification == "rejection" or (self.verification is None and not self.seeded)
