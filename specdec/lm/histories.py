"""What stands before each node's next token: what penalties and min_tokens count."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.core.tree import DraftTree, Ids


@dataclass(frozen=True, eq=False)
class Histories:
    """Of the nodes of one session.

    context: uint32[n], prompt and output committed so far; turn_start: index of this turn's first output
    token. paths: per node, the draft tokens between the context and the node's next token."""

    context: Ids
    turn_start: int
    paths: tuple[tuple[int, ...], ...]

    @staticmethod
    def of_tree(context: Ids, turn_start: int, tree: DraftTree) -> Histories:
        """Histories of all nodes of `tree`, in node order."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
            paths.append((*paths[parent], token))
        return Histories(context, turn_start, tuple(paths))
