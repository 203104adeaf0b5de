"""The cost model of speculative decoding (algorithms.md, section 11; Leviathan et al. 2023, section 3.3)."""

from __future__ import annotations


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens per cycle with k draft tokens, each accepted with probability alpha: (1 - alpha^(k+1)) / (1 -
    alpha), summed as a series so that alpha = 1 is no exception."""
    return sum(alpha**i for i in range(k + 1))


def speedup(alpha: float, k: int, c: float, rho: float = 0.0, rho_d: float = 0.0) -> float:
    """Over plain decoding in the same topology. c: draft step over target step; rho, rho_d: round trips to
    verifier and drafter over target step. Without draft tokens the drafter is not asked."""
    cycle = 1 + rho + (k * c + rho_d if k else 0.0)
    return expected_tokens(alpha, k) * (1 + rho) / cycle


def best_k(alpha: float, c: float, rho: float, rho_d: float, max_k: int) -> int:
    """The k in 0..max_k with the greatest speedup, the smallest of equals."""
    return max(range(max_k + 1), key=lambda k: speedup(alpha, k, c, rho, rho_d))
