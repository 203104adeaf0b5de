"""What a person sees: tokens coloured by where they came from, and tables of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from protos.generation_pb2 import (
    TOKEN_ORIGIN_ACCEPTED,
    TOKEN_ORIGIN_BONUS,
    TOKEN_ORIGIN_RECOVERED,
    TOKEN_ORIGIN_REPLAYED,
    Chunk,
    Complete,
)
from specdec.edge.comparison import Comparison, exact_alpha

ORIGINS = {
    TOKEN_ORIGIN_ACCEPTED: ("accepted", "green", "a draft token that survived"),
    TOKEN_ORIGIN_RECOVERED: ("recovered", "bold yellow", "the target's own, where a draft was wrong or missing"),
    TOKEN_ORIGIN_BONUS: ("bonus", "bold cyan", "the target's own, after a whole draft survived"),
    TOKEN_ORIGIN_REPLAYED: ("replayed", "dim", "stored earlier, sent again"),
}
_UNPRINTABLE = dict.fromkeys((*range(32), *range(127, 160)), "�")
_UNPRINTABLE |= {ord("\n"): "\n", ord("\t"): "\t"}


def printable(text: str) -> str:
    """A model may write escape sequences; a terminal must not obey them."""
    return text.translate(_UNPRINTABLE)


def legend() -> Text:
    line = Text()
    for origin in (TOKEN_ORIGIN_ACCEPTED, TOKEN_ORIGIN_RECOVERED, TOKEN_ORIGIN_BONUS):
        name, style, meaning = ORIGINS[origin]
        line.append("\n" if line else "").append(f"{name:>9}", style).append(f"  {meaning}", "dim")
    return line


def coloured(chunk: Chunk) -> Text:
    """The chunk's text, each token in its origin's colour."""
    text = Text()
    for token in chunk.tokens:
        _, style, _ = ORIGINS.get(token.origin, ("", "", ""))
        text.append(printable(token.text), style)
    return text


def statistics(complete: Complete) -> Table:
    """What `--stats` shows of one generation."""
    stats, usage = complete.draft_stats, complete.usage
    cycles = max(stats.cycles, 1)
    rows = [
        ("prompt / output tokens", f"{usage.prompt_tokens} / {usage.completion_tokens}"),
        ("time to first token", f"{stats.time_to_first_token:.3f} s"),
        ("decoding", f"{stats.decode_seconds:.3f} s"),
        ("tokens/s, prompt included", _rate(usage.completion_tokens, stats.time_to_first_token + stats.decode_seconds)),
        ("cycles, of them with a draft", f"{stats.cycles}, {stats.drafts}"),
        ("draft tokens, accepted", f"{stats.draft_tokens}, {stats.accepted_tokens}"),
        ("acceptance rate", _share(stats.accepted_tokens, stats.draft_tokens)),
        ("mean acceptance length", f"{usage.completion_tokens / cycles:.2f}"),
        ("accepted per position", " ".join(map(str, stats.accepted_per_position)) or "-"),
        ("exact alpha", _number(exact_alpha([stats]))),
        ("draft / verify / commit", _phases(stats.draft_seconds, stats.verify_seconds, stats.commit_seconds)),
        ("cycles per drafter", _counts(stats.cycles_per_drafter)),
        ("output", "lossy: typical acceptance, not the target's law" if stats.lossy else "the target's law"),
        ("bytes per cycle, sent / received", f"{stats.bytes_sent / cycles:.0f} / {stats.bytes_received / cycles:.0f}"),
        ("fallbacks", _counts(stats.fallbacks) or "none"),
    ]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(Text(name, "dim"), value)
    return table


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One column per workload."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for comparison in comparisons:
        table.add_column(comparison.name, justify="right")
    rows = {
        "tokens/s with speculation": [f"{c.speculative_rate:.1f}" for c in comparisons],
        "tokens/s at k = 0": [f"{c.plain_rate:.1f}" for c in comparisons],
        "ratio": [f"{c.ratio:.2f}x" for c in comparisons],
        "acceptance rate": [_percent(c.acceptance_rate) for c in comparisons],
        "mean acceptance length": [f"{c.mean_acceptance_length:.2f}" for c in comparisons],
        "exact alpha": [_number(c.exact_alpha) for c in comparisons],
        "bytes per cycle, sent": [f"{c.bytes_per_cycle[0]:.0f}" for c in comparisons],
        "bytes per cycle, received": [f"{c.bytes_per_cycle[1]:.0f}" for c in comparisons],
        "tokens, runs of each kind": [f"{len(c.plain[0].token_ids)}, {len(c.plain)}" for c in comparisons],
        "output identical to k = 0": ["yes" if c.identical else "NO" for c in comparisons],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells, style="bold" if name == "ratio" else "")
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'no draft'} {n}" for name, n in sorted(counts.items()))


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f}" if seconds > 0 else "-"


def _share(part: int, whole: int) -> str:
    return _percent(part / whole if whole else None)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _phases(*seconds: float) -> str:
    return " / ".join(f"{s:.3f} s" for s in seconds)
