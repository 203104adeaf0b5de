"""One stream's session as the engine sees it, and the work it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.core.features import VerifiedFeatures
from specdec.core.tree import Ids
from specdec.core.verification import Verification
from specdec.edge.messages import OpenSession, Refusal, StaleContext, VerifyRequest
from specdec.lm.kv import KVSequence
from specdec.lm.runner import Segment
from target_service.features import Delivered


@dataclass(slots=True, eq=False)
class TargetSession:
    """context: uint32[n], the known tokens; their keys and values may be missing at any time, for `sequence`
    is only a cache. last_used: seconds, when it was last asked or answered. kept_until: seconds, before which nobody
    takes the room that it has, None while it has none. delivered: what has been sent of hidden states, None before the
    first."""

    opening: OpenSession
    sequence: KVSequence
    context: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    last_used: float = 0.0
    kept_until: float | None = None
    closed: bool = False
    delivered: Delivered | None = None


@dataclass(slots=True, eq=False)
class VerifyJob:
    """One message of one session; everything but the first two fields is the engine's. eligible: number of the step
    since which it has been waiting for rows. until: seconds, when it is given up if it has no room. fresh_from: the
    context position from which on its rows are computed for it, whoever holds them. found_tokens: context tokens that
    the prefix cache had, beyond what the session held. logits: of the wanted rows computed so far; hidden: [rows,
    layers, size], of the tapped rows."""

    session: TargetSession
    request: VerifyRequest
    begun: bool = False
    admitted: bool = False
    eligible: int = 0
    until: float = math.inf
    fresh_from: int = 0
    computed_tokens: int = 0
    found_tokens: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)

    @property
    def parked(self) -> bool:
        """It waits for room."""
        return self.begun and not self.admitted

    @property
    def rows(self) -> int:
        """Rows that its session holds when it is done: the context and the draft tokens."""
        return len(self.session.context) + self.request.tree.num_draft_tokens

    @property
    def rows_left(self) -> int:
        return self.rows - self.session.sequence.num_rows

    def next_segment(self, rows: int) -> Segment:
        """The next `rows` rows: context first, then draft tokens, and counts them. Logits are wanted from the last
        context token on, hidden states, if at all, from `fresh_from` on."""
        sequence, context, tree = self.session.sequence, self.session.context, self.request.tree
        held, grown = sequence.num_context, len(sequence.tree_ids)
        token_ids = context[held : held + rows]
        drafted = slice(grown, grown + rows - len(token_ids))
        root = int(len(token_ids) > 0 and held + len(token_ids) == len(context))
        tapped = min(rows, held + rows - self.fresh_from) if self.session.opening.feature_layers else 0
        self.computed_tokens += len(token_ids)
        return Segment(
            sequence,
            token_ids,
            tree.token_ids[drafted],
            tree.parents[drafted],
            wanted=root + len(tree.token_ids[drafted]),
            tapped=max(0, tapped),
        )


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """computed_tokens: context tokens computed for it; batch_size, batch_rows: jobs and rows in the last forward that
    served it; features: hidden states, where the session wants them."""

    result: Verification | StaleContext | Refusal
    computed_tokens: int = 0
    batch_size: int = 0
    batch_rows: int = 0
    features: VerifiedFeatures | None = None
