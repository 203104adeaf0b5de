"""One ragged forward for prefill chunks, chains and trees of many sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.lm.kv import KVPool, KVSequence, num_blocks
from specdec.lm.loading import LoadedModel
from specdec.lm.ragged import RaggedBatch, Segment

__all__ = ["Computed", "Runner", "Segment"]


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What a forward gives for one segment. logits: float32[wanted, padded vocabulary], of its last `wanted` rows, raw.
    hidden: float32[tapped, layers asked for, hidden size], of its last `tapped` rows."""

    logits: torch.Tensor
    hidden: torch.Tensor


class Runner:
    """Runs a loaded model over sequences of its own KV pool. Not thread-safe, blocking: call it off the event
    loop.

    Typical use, one verify step of one session:
        sequence = runner.new_sequence() sequence.rewind(context[:-1])           # what is held already stays;
        the last token's row gives the root's logits segment = Segment(sequence,
        context[sequence.num_context:], tree.token_ids, tree.parents,
                          wanted=tree.num_nodes)
        [logits] = runner.forward([segment])    # float32[num_nodes, padded vocabulary]: root, then draft
        tokens

    A drafter that grows a tree calls forward again with `token_ids` empty and only the new nodes; a drafter
    that drafts a chain may as well append its guesses as context rows, since `rewind` keeps whatever prefix
    turns out true."""

    def __init__(self, loaded: LoadedModel, kv_tokens: int) -> None:
        """kv_tokens: tokens whose keys and values may be held at the same time, by all sequences together."""
        self.loaded = loaded
        self._storage = loaded.network.new_storage(num_blocks(kv_tokens))
        self.pool = KVPool(self._storage, kv_tokens, loaded.fingerprint)

    def new_sequence(self, salt: bytes = b"") -> KVSequence:
        """An empty sequence of this runner's pool. Only sequences of one salt share blocks."""
        return self.pool.new_sequence(salt)

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Compute the rows of all segments in one pass; the sequences then hold them.

        Returns, per segment, the logits of its last `wanted` rows: float32[wanted, padded vocabulary], raw
        (no penalties, no temperature), on the model's device. Sequences must be distinct.

        Raises ResourceExhausted before any row is written when the rows do not fit the pool. Whatever the
        model itself raises passes through, and every sequence still holds exactly what it held before."""
        return [computed.logits for computed in self.compute(segments)]

    def compute(self, segments: Sequence[Segment], layers: Sequence[int] = ()) -> list[Computed]:
        """`forward`, with hidden states. layers: the decoder layers, counted from 1, whose output is wanted of tapped
        rows, the residual stream before any norm; 0: what enters the first layer. Distinct, at most `num_layers`.
        The logits are those of a forward without, bit for bit."""
        depth = self.loaded.num_layers
        assert len(set(layers)) == len(layers), "a layer twice"
        assert all(0 <= layer <= depth for layer in layers), f"layers {list(layers)} of a model of {depth}"
        batch = RaggedBatch.of(segments)
        with torch.inference_mode():
            logits, hidden = self.loaded.network.forward(batch, self._storage, tuple(layers))
        batch.commit()
        parts = torch.split(logits, [s.wanted for s in segments]), torch.split(hidden, [s.tapped for s in segments])
        return [Computed(*both) for both in zip(*parts, strict=True)]
