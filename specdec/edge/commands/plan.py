"""`specdec plan`: the cost model of speculative decoding as a table over k."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from specdec.core.errors import ConfigError
from specdec.core.speedup import best_k, expected_tokens, speedup

HELP = "how many tokens to draft, from the acceptance rate and the costs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alpha", type=float, required=True, help="acceptance rate per draft token, 0 to 1")
    parser.add_argument("--c", type=float, required=True, help="cost of a draft step, in target steps")
    parser.add_argument("--round-trip", type=float, default=0.0, help="to the verifier and back, in target steps (rho)")
    parser.add_argument(
        "--draft-round-trip", type=float, default=0.0, help="to the drafter and back, in target steps (rho_d)"
    )
    parser.add_argument("--max-k", type=int, default=16, help="largest k shown")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    alpha, c, rho, rho_d, max_k = (
        getattr(arguments, name) for name in ("alpha", "c", "round_trip", "draft_round_trip", "max_k")
    )
    best = best_k(alpha, c, rho, rho_d, max_k)
    console = Console(highlight=False)
    console.print(_table(alpha, c, rho, rho_d, max_k, best))
    if best == 0:
        console.print("Speculation does not pay here: decode plainly (k = 0).")
    else:
        gain = speedup(alpha, best, c, rho, rho_d)
        console.print(f"Best: k = {best}, {gain:.2f} times as fast as plain decoding in the same topology.")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.alpha <= 1:
        raise ConfigError("alpha", arguments.alpha, "must be from 0 to 1")
    for name in ("c", "round_trip", "draft_round_trip"):
        value = getattr(arguments, name)
        if not 0 <= value < float("inf"):
            raise ConfigError(name, value, "must be a number of target steps, at least 0")
    if not 0 <= arguments.max_k <= 255:
        raise ConfigError("max_k", arguments.max_k, "must be from 0 to 255")


def _table(alpha: float, c: float, rho: float, rho_d: float, max_k: int, best: int) -> Table:
    title = f"alpha {alpha:g}, c {c:g}, round trips {rho:g} (verifier) and {rho_d:g} (drafter) target steps"
    table = Table("k", "tokens per cycle", "speedup", "", title=title, title_justify="left")
    for column in table.columns[:3]:
        column.justify = "right"
    for k in range(max_k + 1):
        cells = (str(k), f"{expected_tokens(alpha, k):.2f}", f"{speedup(alpha, k, c, rho, rho_d):.2f}x")
        table.add_row(*cells, "<- best" if k == best else "", style="bold green" if k == best else "")
    return table
