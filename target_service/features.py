"""Hidden states for a session's drafter: which its receiver lacks, which are computed again for it, which are sent.

Keys and values of a context may lie ready, its hidden states never do: they are sent once, as they are computed. Where
a session begins on a context that is held already, the last FEATURE_WINDOW positions are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.core.acceptance import follow
from specdec.core.draft import Draft
from specdec.core.errors import InvalidArgument
from specdec.core.features import FEATURE_WINDOW, FeatureRows, VerifiedFeatures
from specdec.core.tree import DraftTree, Ids
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.messages import OpenSession
from specdec.lm.features import encode


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the stream's receiver has been sent: hidden states at the end of `context` and at all nodes of `tree`."""

    context: Ids
    tree: DraftTree

    def reach(self, context: Ids) -> int:
        """How many of the first positions of `context` it needs no more: up to where the two part."""
        n = min(len(context), len(self.context))
        differs = np.flatnonzero(self.context[:n] != context[:n])
        if len(differs):
            return int(differs[0])
        nodes = {0}
        for depth, token in enumerate(context[n:].tolist()):
            nodes = {child for node in nodes for child in self.tree.children[node] if self.tree.token(child) == token}
            if not nodes:
                return n + depth
        return len(context)


def check_layers(opening: OpenSession, num_layers: int) -> None:
    """Raises InvalidArgument for layers that the model has not got."""
    if opening.feature_layers and max(opening.feature_layers) > num_layers:
        raise InvalidArgument(
            "open.feature_layers", list(opening.feature_layers), f"this model has {num_layers} layers"
        )


def first_wanted(opening: OpenSession, delivered: Delivered | None, context: Ids) -> int:
    """The first position whose row is computed for a message in any case. The last token always is: its row is the
    root, whose logits are wanted."""
    root = len(context) - 1
    if not opening.feature_layers:
        return root
    reach = 0 if delivered is None else delivered.reach(context)
    return min(root, max(reach, root - FEATURE_WINDOW))


def columns(hidden: torch.Tensor, computed: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
    """hidden: [rows, computed layers, size]. Those of the layers wanted, in their order."""
    if tuple(computed) == tuple(wanted):
        return hidden
    return hidden[:, [computed.index(layer) for layer in wanted]]


def verified_features(
    hidden: torch.Tensor, context: Ids, tree: DraftTree, verification: Verification
) -> tuple[VerifiedFeatures, Delivered]:
    """What is sent with a verification, and what its receiver has from then on. hidden: [rows, layers, size], of the
    wanted positions before the root, the root and all draft tokens. In the y-form the walk is decided here and nothing
    off it is ever of use."""
    before = len(hidden) - tree.num_nodes
    if verification.form is VerifyForm.Y:
        nodes = follow(Draft(tree), verification, np.empty(0)).nodes
        hidden = hidden[[*range(before + 1), *(before + node for node in nodes)]]
        tree = DraftTree.chain([tree.token(node) for node in nodes])
    rows = FeatureRows(len(context) - 1 - before, len(hidden), encode(hidden))
    return VerifiedFeatures(rows, before), Delivered(context, tree)
