"""One stream's session as the engine sees it, and the work it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.core.tree import Ids
from specdec.core.verification import Verification
from specdec.edge.messages import OpenSession, Refusal, StaleContext, VerifyRequest
from specdec.lm.kv import KVSequence


@dataclass(slots=True, eq=False)
class TargetSession:
    """context: uint32[n], the known tokens; their keys and values may be missing at any time, for `sequence`
    is only a cache. last_used: number of the last step that served it."""

    opening: OpenSession
    sequence: KVSequence
    context: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    last_used: int = 0
    closed: bool = False


@dataclass(slots=True, eq=False)
class VerifyJob:
    """One message of one session; everything but the first two fields is the engine's. eligible: number of
    the step since which it has been waiting for rows. found_tokens: context tokens that the prefix cache had, beyond
    what the session held. logits: of the wanted rows computed so far."""

    session: TargetSession
    request: VerifyRequest
    begun: bool = False
    admitted: bool = False
    eligible: int = 0
    computed_tokens: int = 0
    found_tokens: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that its session holds when it is done: the context and the draft tokens."""
        return len(self.session.context) + self.request.tree.num_draft_tokens

    @property
    def rows_left(self) -> int:
        return self.rows - self.session.sequence.num_rows


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """computed_tokens: context tokens computed for it; batch_size, batch_rows: jobs and rows in the last forward that
    served it."""

    result: Verification | StaleContext | Refusal
    computed_tokens: int = 0
    batch_size: int = 0
    batch_rows: int = 0
