"""All acceptance rules by name."""

from __future__ import annotations

from specdec.core.acceptance import Rule, follow, token_rule
from specdec.core.block import block_rule
from specdec.core.traversal import traversal_rule
from specdec.core.typical import typical_rule

RULES: dict[str, Rule] = {
    "coupled": follow,
    "rejection": token_rule,
    "block": block_rule,
    "traversal": traversal_rule,
    "typical": typical_rule,
}
LOSSY = frozenset({"typical"})  # what they emit does not have the target's law
