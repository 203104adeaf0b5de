"""What the cycles of a run say of one drafter, in one domain, at one temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from specdec.core.speedup import best_k
from specdec.edge.profile.cycles import CycleSample
from specdec.edge.profile.statistics import (
    Costs,
    Cycles,
    branching,
    costs,
    counted_alpha,
    exact_alpha,
    geometric,
    predicted_speedup,
    predicted_tokens,
    predicted_tree_speedup,
    rate,
    survival,
    tokens_per_cycle,
)

ALL = "all"  # the domain of a cell over all domains
AUTO = "auto"  # the drafter that the coordinator chooses, with as many tokens as it plans
POSITIONS = 16  # reported at most


@dataclass(frozen=True, slots=True)
class Key:
    """k: draft tokens asked for (nodes, of a tree); None: as many as the coordinator plans."""

    domain: str
    temperature: float
    drafter: str
    k: int | None


PLAIN = ""  # the drafter of a Key with k = 0
Samples = Mapping[Key, Sequence[CycleSample]]


@dataclass(frozen=True, slots=True)
class Point:
    """One k. tokens: a cycle; speedup: over plain decoding in the same run; predicted: by the cost model, None where it
    has nothing to go by."""

    k: int | None
    tokens: float
    speedup: float
    predicted_tokens: float | None
    predicted_speedup: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """judged: positions; accepted: share of the drafts that were accepted to each position, geometric: what one alpha
    for all of them would give. best_predicted: k, None for trees and where nothing was judged; best_measured: 0 where
    none was faster than plain decoding."""

    domain: str
    temperature: float
    drafter: str
    tree: bool
    judged: int
    exact_alpha: float | None
    counted_alpha: float | None
    accepted: tuple[float | None, ...]
    geometric: tuple[float, ...]
    costs: Costs
    plain_rate: float
    points: tuple[Point, ...]
    best_predicted: int | None
    best_measured: int | None

    @property
    def alpha(self) -> float | None:
        """Exact where it was measured, else counted."""
        return self.counted_alpha if self.exact_alpha is None else self.exact_alpha

    @property
    def best(self) -> Point:
        """The fastest of the points."""
        return max(self.points, key=lambda point: point.speedup)


def cell(
    domain: str, temperature: float, drafter: str, runs: Mapping[int | None, Cycles], plain: Cycles, max_k: int
) -> Cell:
    """runs: k -> its cycles, none of them empty; max_k: the largest k predicted for."""
    cycles = [cycle for by_k in runs.values() for cycle in by_k]
    cost = costs(cycles, plain)
    alpha_exact, alpha_counted = exact_alpha(cycles), counted_alpha(cycles)
    alpha = alpha_counted if alpha_exact is None else alpha_exact
    tree = branching(cycles)
    positions = min(POSITIONS, max((cycle.depth for cycle in cycles), default=0))
    points = tuple(_point(k, by_k, plain, cost, alpha, tree) for k, by_k in runs.items())
    best = max(points, key=lambda point: point.speedup)
    foreseen = None if tree or alpha is None or drafter == AUTO else _best_k(alpha, cost, max_k)
    return Cell(
        domain=domain,
        temperature=temperature,
        drafter=drafter,
        tree=tree,
        judged=sum(cycle.reached for cycle in cycles),
        exact_alpha=alpha_exact,
        counted_alpha=alpha_counted,
        accepted=survival(cycles, positions),
        geometric=geometric(alpha, positions) if alpha is not None else (),
        costs=cost,
        plain_rate=rate(plain),
        points=points,
        best_predicted=foreseen,
        best_measured=best.k if best.speedup > 1 else 0,
    )


def _best_k(alpha: float, cost: Costs, max_k: int) -> int:
    return best_k(alpha, cost.c + cost.row, cost.rho, cost.rho_d, max_k)


def _point(k: int | None, cycles: Cycles, plain: Cycles, cost: Costs, alpha: float | None, tree: bool) -> Point:
    base = rate(plain)
    tokens, predicted = None, None
    if tree:
        predicted = predicted_tree_speedup(cycles, cost)
    elif alpha is not None and k is not None:
        tokens, predicted = predicted_tokens(alpha, cycles), predicted_speedup(alpha, cycles, cost)
    return Point(k, tokens_per_cycle(cycles), rate(cycles) / base if base else 0.0, tokens, predicted)


def cells(samples: Samples, max_k: int) -> list[Cell]:
    """One per domain, temperature and drafter, then those over all domains. Configurations without a steady cycle (each
    answer ended within its first) are left out."""
    groups: dict[tuple[str, float, str], dict[int | None, list[CycleSample]]] = {}
    for key, cycles in samples.items():
        for domain in (key.domain, ALL):
            by_k = groups.setdefault((domain, key.temperature, key.drafter), {})
            by_k.setdefault(key.k, []).extend(cycles)
    found = []
    for (domain, temperature, drafter), by_k in groups.items():
        plain = groups.get((domain, temperature, PLAIN), {}).get(0, [])
        runs = {k: cycles for k, cycles in by_k.items() if cycles}
        if drafter != PLAIN and plain and runs:
            found.append(cell(domain, temperature, drafter, runs, plain, max_k))
    domains = list(dict.fromkeys(key.domain for key in samples))
    places = {domain: place for place, domain in enumerate([*domains, ALL])}
    return sorted(found, key=lambda one: (places[one.domain], one.temperature, one.drafter == AUTO, one.drafter))


@dataclass(frozen=True, slots=True)
class Configuration:
    """speedup: geometric mean over the domains and temperatures; loses: those where it was slower than plain
    decoding, and how fast."""

    drafter: str
    k: int | None
    speedup: float
    loses: tuple[tuple[str, float, float], ...]


def configurations(found: Sequence[Cell]) -> list[Configuration]:
    """Every drafter and k, the fastest first."""
    speeds: dict[tuple[str, int | None], list[tuple[str, float, float]]] = {}
    for one in found:
        if one.domain != ALL:
            for point in one.points:
                row = (one.domain, one.temperature, point.speedup)
                speeds.setdefault((one.drafter, point.k), []).append(row)
    ranked = [
        Configuration(
            drafter,
            k,
            geometric_mean(max(speed, 1e-9) for *_, speed in rows),
            tuple(row for row in rows if row[2] < 1),
        )
        for (drafter, k), rows in speeds.items()
    ]
    return sorted(ranked, key=lambda one: -one.speedup)


def recommendation(found: Sequence[Cell], worth: float = 1.02, near: float = 0.97) -> str:
    """One or two sentences: the configuration to use, and where speculation loses. worth: the gain below which plain
    decoding is as good; near: `auto` is advised where it reaches this share of the best."""
    ranked = configurations(found)
    if not ranked or ranked[0].speedup < worth:
        best = f" (the best, {_named(ranked[0])}, {ranked[0].speedup:.2f}x)" if ranked else ""
        return f"Decode plainly, num_draft_tokens = 0: speculation does not pay here{best}."
    auto = next((one for one in ranked if one.drafter == AUTO), None)
    chosen = auto if auto is not None and auto.speedup >= near * ranked[0].speedup else ranked[0]
    losses = ", ".join(f"{domain} at T = {t:g} ({speed:.2f}x)" for domain, t, speed in chosen.loses)
    return (
        f"Use {_named(chosen)}: {chosen.speedup:.2f} times as fast as plain decoding, over all domains and "
        "temperatures. " + (f"It loses on {losses}." if losses else "It loses nowhere here.")
    )


def _named(configuration: Configuration) -> str:
    if configuration.drafter == AUTO:
        return "drafter auto (the default)"
    return f"drafter {configuration.drafter}, num_draft_tokens = {configuration.k}"
