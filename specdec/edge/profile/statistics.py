"""The figures of a profile, as pure functions of cycles (algorithms.md, section 11; Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from specdec.core.speedup import expected_tokens
from specdec.edge.profile.cycles import CycleSample

Cycles = Sequence[CycleSample]


@dataclass(frozen=True, slots=True)
class Costs:
    """In plain target steps, each of `step` seconds. c: of one draft token (of one level, where drafts branch); row:
    what verifying one draft token more adds to the target's step; rho, rho_d: round trips to verifier and drafter."""

    step: float
    c: float
    row: float
    rho: float
    rho_d: float


def exact_alpha(cycles: Cycles) -> float | None:
    """Mean of 1 - TV(p, q) over the judged positions; None where it was measured nowhere."""
    alphas = [alpha for cycle in cycles for alpha in cycle.alphas]
    return sum(alphas) / len(alphas) if alphas else None


def counted_alpha(cycles: Cycles) -> float | None:
    """Accepted over judged positions; None where none was judged."""
    reached = sum(cycle.reached for cycle in cycles)
    return sum(cycle.accepted for cycle in cycles) / reached if reached else None


def survival(cycles: Cycles, positions: int) -> tuple[float | None, ...]:
    """For each of the first positions, the share of the drafts that long whose token there was accepted; None where no
    draft was that long."""
    shares: list[float | None] = []
    for position in range(positions):
        long_enough = [cycle for cycle in cycles if cycle.depth > position]
        accepted = sum(cycle.accepted > position for cycle in long_enough)
        shares.append(accepted / len(long_enough) if long_enough else None)
    return tuple(shares)


def geometric(alpha: float, positions: int) -> tuple[float, ...]:
    """What `survival` would be if every token were accepted with chance alpha, whatever became of those before it. The
    gap between both is the correlation of acceptances."""
    return tuple(alpha ** (position + 1) for position in range(positions))


def tokens_per_cycle(cycles: Cycles) -> float:
    """Mean acceptance length, the recovered or bonus token included; tokens behind a stop count as emitted."""
    return sum(cycle.accepted + 1 for cycle in cycles) / len(cycles)


def rate(cycles: Cycles) -> float:
    """Tokens a second, as the client got them; 0.0 without cycles."""
    seconds = sum(cycle.seconds for cycle in cycles)
    return sum(cycle.tokens for cycle in cycles) / seconds if seconds > 0 else 0.0


def costs(drafted: Cycles, plain: Cycles) -> Costs:
    """From cycles with drafts and plain ones of the same run. Medians, so that a pause counts for nothing. Both must
    not be empty, and plain steps must have taken time."""
    assert plain and drafted, "costs compare drafted cycles with plain ones"
    step = median(cycle.verify_seconds for cycle in plain)
    assert step > 0, "a target step took no time"
    with_draft = [cycle for cycle in drafted if cycle.depth]
    if not with_draft:
        return Costs(step, inf, 0.0, median(cycle.verify_network for cycle in plain) / step, 0.0)
    return Costs(
        step=step,
        c=median(cycle.draft_seconds / cycle.depth for cycle in with_draft) / step,
        row=median(max(0.0, cycle.verify_seconds - step) / cycle.nodes for cycle in with_draft) / step,
        rho=median(cycle.verify_network for cycle in plain) / step,
        rho_d=median(cycle.draft_network for cycle in with_draft) / step,
    )


def predicted_speedup(alpha: float, cycles: Cycles, cost: Costs) -> float:
    """Over plain decoding, of chains as long as these were (a drafter may find less than was asked for, or nothing), if
    acceptances were independent. Where all have k tokens it is the cost model's `speedup` at k."""
    steps = [
        1 + cost.rho + (cycle.depth * (cost.c + cost.row) + cost.rho_d if cycle.depth else 0.0) for cycle in cycles
    ]
    return predicted_tokens(alpha, cycles) * (1 + cost.rho) * len(cycles) / sum(steps)


def predicted_tree_speedup(cycles: Cycles, cost: Costs) -> float:
    """Of trees: acceptance as it was counted, priced by the cost model."""
    steps = [
        1 + cost.rho + (cycle.depth * cost.c + cycle.nodes * cost.row + cost.rho_d if cycle.depth else 0.0)
        for cycle in cycles
    ]
    return tokens_per_cycle(cycles) * (1 + cost.rho) * len(cycles) / sum(steps)


def predicted_tokens(alpha: float, cycles: Cycles) -> float:
    """Tokens a cycle if acceptances were independent, for drafts as long as these were."""
    return sum(expected_tokens(alpha, cycle.depth) for cycle in cycles) / len(cycles)


def branching(cycles: Cycles) -> bool:
    """Whether any draft was a tree."""
    return any(cycle.nodes > cycle.depth for cycle in cycles)
