"""Cycles made up for tests: chains accepted at random, at given costs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from specdec.edge.profile.cycles import CycleSample

STEP = 0.01  # seconds of a plain target step


@dataclass(frozen=True)
class Given:
    """As in Costs, in plain steps."""

    c: float = 0.1
    row: float = 0.0
    rho: float = 0.0
    rho_d: float = 0.0


USUAL = Given()


def cycle(
    depth: int,
    accepted: int,
    alpha: float | None = None,
    given: Given = USUAL,
    *,
    nodes: int | None = None,
    drafter: str = "lm",
) -> CycleSample:
    nodes = depth if nodes is None else nodes
    verify, draft = STEP * (1 + given.row * nodes), STEP * given.c * depth
    draft_network = STEP * given.rho_d if depth else 0.0
    reached = min(depth, accepted + 1)
    return CycleSample(
        drafter=drafter if depth else "",
        nodes=nodes,
        depth=depth,
        accepted=accepted,
        bonus=accepted == depth,
        tokens=accepted + 1,
        alphas=() if alpha is None else (alpha,) * reached,
        seconds=verify + draft + draft_network + STEP * given.rho,
        draft_seconds=draft,
        verify_seconds=verify,
        draft_network=draft_network,
        verify_network=STEP * given.rho,
    )


def chains(alpha: float, k: int, count: int, given: Given = USUAL, *, seed: int = 0) -> list[CycleSample]:
    """Each token accepted with chance alpha, independently; the exact alpha is known."""
    chance = random.Random(seed)
    out = []
    for _ in range(count):
        accepted = next((i for i in range(k) if chance.random() >= alpha), k)
        out.append(cycle(k, accepted, alpha, given))
    return out


def plain(count: int, rho: float = 0.0) -> list[CycleSample]:
    return [cycle(0, 0, given=Given(rho=rho)) for _ in range(count)]
