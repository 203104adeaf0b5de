"""What becomes of a sampled draft whose tokens were not drawn from the laws that came with it."""

from __future__ import annotations

from dataclasses import replace

from specdec.core.draft import Draft, DraftKind
from specdec.core.laws import draw
from specdec.core.randomness import Purpose, uniforms
from specdec.core.tree import DraftTree


def redrawn(draft: Draft, seed: int, base: int) -> Draft:
    """The draft up to the first token that its laws and the DRAFT numbers of (seed, base) do not give, that token put
    right. It must have passed `check_draft`.

    To drop the draft instead would keep just those whose numbers hide the lie: drafts chosen by their own tokens, which
    bias the output (algorithms.md, section 9). Here no node exists because of its own token: what came before it
    decides, and every token is drawn from its law."""
    tree = draft.tree
    us = uniforms(seed, base, Purpose.DRAFT, tree.num_nodes)
    laws = dict(zip(tree.inner_nodes, draft.laws, strict=True))
    left = {node: law.q.copy() for node, law in laws.items()}
    for node in range(1, tree.num_nodes):
        parent = int(tree.parents[node - 1])
        q, ids = left[parent], laws[parent].ids
        x = draw(q, float(us[node]))
        if ids[x] != tree.token(node):
            tokens = tree.token_ids[:node].copy()
            tokens[-1] = ids[x]
            cut = DraftTree(tokens, tree.parents[:node])
            return replace(draft, tree=cut, laws=tuple(laws[inner] for inner in cut.inner_nodes))
        if draft.kind is DraftKind.SAMPLED_WITHOUT_REPLACEMENT:
            q[x] = 0.0
    return draft
