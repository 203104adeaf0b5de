"""The drafter's view of one stream: what it was opened with, and its context, which lives as long as the stream."""

from __future__ import annotations

import numpy as np

from specdec.core.errors import InvalidArgument
from specdec.core.tree import Ids
from specdec.edge.messages import DraftRequest, OpenSession, StaleContext


class DraftSession:
    """Told apart by identity: two streams of one session id share nothing. `computed_tokens` is the drafter's to
    raise: context tokens it had to compute for the current message."""

    def __init__(self) -> None:
        self.opening: OpenSession | None = None
        self.context: Ids = np.zeros(0, dtype=np.uint32)
        self.computed_tokens = 0

    def reopen(self, opening: OpenSession) -> None:
        """Begin the stream, or a new turn on it: other params, seed, turn start, even another drafter.

        Raises InvalidArgument if the stream belongs to another session."""
        if self.opening is not None and opening.session_id != self.opening.session_id:
            raise InvalidArgument(
                "open.session_id", opening.session_id, f"this stream serves {self.opening.session_id!r}: open another"
            )
        self.opening = opening

    def advance(self, request: DraftRequest) -> StaleContext | None:
        """The context rule, tokens[offset:] = token_ids; or how much is held, where that is less than offset."""
        if request.offset > len(self.context):
            return StaleContext(len(self.context))
        self.context = np.concatenate([self.context[: request.offset], request.token_ids])
        self.context.flags.writeable = False
        return None
