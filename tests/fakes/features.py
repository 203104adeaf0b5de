"""Hidden states of a scripted target: each row tells its layers, its position and its token, so that whoever reads one
sees whether it is the right one."""

from __future__ import annotations

import struct
from typing import Any

from specdec.core.features import FEATURE_WINDOW, FeatureRows, VerifiedFeatures, row_bytes
from specdec.core.tree import DraftTree
from specdec.core.verification import Verification, VerifyForm
from specdec.edge.messages import VerifyRequest
from tests.fakes.scripted import Stream

NUM_LAYERS, SIZE = 6, 8
_BLOCK = struct.Struct("<III")
assert _BLOCK.size == row_bytes(1, SIZE)

TARGET_INFO: dict[str, Any] = {"num_layers": NUM_LAYERS, "hidden_size": SIZE, "base_fingerprint": "base"}


def row(layers: tuple[int, ...], position: int, token: int) -> bytes:
    return b"".join(_BLOCK.pack(layer, position, token) for layer in layers)


def scripted_features(stream: Stream, request: VerifyRequest, verification: Verification) -> VerifiedFeatures:
    """What an engine sends: positions before the root that the stream has not been sent, then nodes."""
    assert stream.opening is not None
    layers, tree, tokens = stream.opening.feature_layers, request.tree, stream.tokens
    root = len(tokens) - 1
    start = root
    while start > max(0, root - FEATURE_WINDOW) and tuple(tokens[:start]) not in stream.delivered:
        start -= 1
    nodes = _walk(tree, verification) if request.form is VerifyForm.Y else list(range(tree.num_nodes))
    data = [row(layers, i, tokens[i]) for i in range(start, root)]
    depths = tree.depths.tolist()
    for node in nodes:
        data.append(row(layers, root + depths[node], [*tokens, *tree.path(node)][root + depths[node]]))
        stream.delivered.add((*tokens, *tree.path(node)))
    stream.delivered |= {tuple(tokens[: i + 1]) for i in range(root)}
    return VerifiedFeatures(FeatureRows(start, len(data), b"".join(data)), root - start)


def _walk(tree: DraftTree, verification: Verification) -> list[int]:
    nodes = [0]
    while True:
        y = int(verification.drawn[nodes[-1]])
        children = [child for child in tree.children[nodes[-1]] if tree.token(child) == y]
        if not children:
            return nodes
        nodes.append(children[0])
