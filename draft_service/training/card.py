"""The card of a trained draft: what it was made from, how it got there, and how to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draft_service.training.evaluation import Evaluation

MOST_POINTS = 12  # of the curve


def card(
    name: str, facts: Mapping[str, Any], evaluation: Evaluation, curve: Sequence[Mapping[str, Any]], command: str
) -> str:
    """Markdown. facts: what is told in one line each."""
    told = "\n".join(f"* {what}: {value}" for what, value in facts.items())
    steps = "\n".join(f"| {i + 1} | {alpha:.3f} |" for i, alpha in enumerate(evaluation.alpha))
    stride = max(1, -(-len(curve) // MOST_POINTS))
    shown = [point for i, point in enumerate(curve) if (len(curve) - 1 - i) % stride == 0]
    points = "\n".join(
        f"| {point['step']} | {point['tokens']:,} | {point['seconds'] / 60:.0f} | {point['alpha'][0]:.3f} |"
        for point in shown
    )
    return f"""# {name}

{told}

## Acceptance

Exact acceptance at temperature 1, the sum of min(p, q) over the vocabulary: the mean over {evaluation.positions:,}
positions of held-out text (standard error of the first {evaluation.error:.3f}). Later draft tokens
follow the draft's own.

| draft token | alpha |
|---|---|
{steps}

## Learning curve

| step | judged tokens | minutes | alpha |
|---|---|---|---|
{points}

## Make it again

```
{command}
```
"""
