"""Sampling parameters as the replicas see them: every field effective."""

from __future__ import annotations

from dataclasses import dataclass

GREEDY_BELOW = 1e-5  # the one threshold: draft, verify, residual and plain paths all use it
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The law of one turn (contract.md, sampling parameters). Order of use: logit bias and penalties, masks,
    temperature, top-k, top-p, min-p.

    top_k 0, top_p 1, min_p 0, repetition_penalty 1, presence/frequency 0 are off. end_ids have probability 0 in the
    first min_tokens output tokens of the turn. logprobs: None, or how many top raw log-probabilities."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
