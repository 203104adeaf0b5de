"""Which form a draft is verified in, and which rule judges it: decided by the turn, and by the draft's kind and shape,
never by its tokens (algorithms.md, section 9)."""

from __future__ import annotations

from coordinator.turn import Turn
from specdec.core.acceptance import Rule
from specdec.core.draft import Draft, DraftKind
from specdec.core.rules import RULES
from specdec.core.verification import VerifyForm


def form_of(turn: Turn, draft: Draft) -> VerifyForm:
    """Sampled drafts are judged by their laws, where the turn is judged so at all; everything else, and no draft, by
    the target's own draws. Typical acceptance needs neither laws nor luck: any draft will do."""
    if not draft.tree.num_draft_tokens:
        return VerifyForm.Y
    if turn.lossy:
        return VerifyForm.TYPICAL
    return VerifyForm.PQ if turn.sampled and draft.kind is not DraftKind.CHOSEN else VerifyForm.Y


def rule_of(turn: Turn, draft: Draft) -> Rule:
    """`block` and `traversal` are one rule: on a chain block verification, on a tree traversal."""
    match form_of(turn, draft):
        case VerifyForm.Y:
            return RULES["coupled"]
        case VerifyForm.TYPICAL:
            return RULES["typical"]
        case VerifyForm.PQ if turn.rule == "rejection":
            return RULES["rejection"]
        case _:
            return RULES["block" if draft.tree.is_chain else "traversal"]
