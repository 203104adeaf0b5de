"""One ragged forward for prefill chunks, chains and trees of many sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.lm.kv import KVPool, KVSequence, KVShape
from specdec.lm.loading import LoadedModel
from specdec.lm.ragged import RaggedBatch, Segment

__all__ = ["Runner", "Segment"]


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
        self.pool = KVPool(_kv_shape(loaded), kv_tokens)

    def new_sequence(self) -> KVSequence:
        """An empty sequence of this runner's pool."""
        return self.pool.new_sequence()

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Compute the rows of all segments in one pass; the sequences then hold them.

        Returns, per segment, the logits of its last `wanted` rows: float32[wanted, padded vocabulary], raw
        (no penalties, no temperature), on the model's device. Sequences must be distinct.

        Raises ResourceExhausted before any row is written when the rows do not fit the pool. Whatever the
        model itself raises passes through, and every sequence still holds exactly what it held before."""
        batch = RaggedBatch.of(segments, self.loaded.device)
        with torch.inference_mode():
            logits = self.loaded.model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                logits_to_keep=batch.wanted_rows,
                ragged=batch,
            ).logits[0]
        batch.commit()
        return list(torch.split(logits.float(), [s.wanted for s in segments]))


def _kv_shape(loaded: LoadedModel) -> KVShape:
    config = loaded.model.config
    heads = config.num_attention_heads
    return KVShape(
        layers=config.num_hidden_layers,
        heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=loaded.model.dtype,
        device=torch.device(loaded.device),
    )
