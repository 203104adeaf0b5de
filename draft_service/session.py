"""The drafter's view of one stream: what it was opened with, and its context, which lives as long as the stream."""

from __future__ import annotations

import numpy as np

from specdec.core.errors import InvalidArgument
from specdec.core.features import FEATURE_WINDOW, NO_FEATURES, FeatureRows
from specdec.core.tree import Ids
from specdec.edge.messages import DraftRequest, OpenSession, StaleContext

KEPT_ROWS = 4 * FEATURE_WINDOW  # a drafter that lost what it made of earlier ones begins there again


class DraftSession:
    """Told apart by identity: two streams of one session id share nothing. `computed_tokens` is the drafter's to
    raise: context tokens it had to compute for the current message.

    features: the target's hidden states of a run of positions of the context, its last token's never among them; they
    end where the target has been, which may be further back; none for a drafter that needs none."""

    def __init__(self) -> None:
        self.opening: OpenSession | None = None
        self.context: Ids = np.zeros(0, dtype=np.uint32)
        self.features: FeatureRows = NO_FEATURES
        self.computed_tokens = 0

    @property
    def cache_salt(self) -> bytes:
        return self.opening.cache_salt if self.opening is not None else b""

    def reopen(self, opening: OpenSession) -> None:
        """Begin the stream, or a new turn on it: other params, seed, turn start, even another drafter.

        Raises InvalidArgument if the stream belongs to another session."""
        if self.opening is not None and opening.session_id != self.opening.session_id:
            raise InvalidArgument(
                "open.session_id", opening.session_id, f"this stream serves {self.opening.session_id!r}: open another"
            )
        if self.opening is None or self.opening.drafter != opening.drafter:
            self.features = NO_FEATURES
        self.opening = opening

    def advance(self, request: DraftRequest, feature_bytes: int = 0) -> StaleContext | None:
        """The context rule, tokens[offset:] = token_ids; or how much is held, where that is less than offset.

        feature_bytes: of one row of the hidden states that the drafter reads, 0: it reads none, and none are kept.
        Raises InvalidArgument, with nothing changed, for rows of another size."""
        rows = request.features
        if feature_bytes and rows is not None and rows.row_bytes != feature_bytes:
            raise InvalidArgument(
                "features", f"rows of {rows.row_bytes} bytes", f"this drafter reads rows of {feature_bytes}"
            )
        if request.offset > len(self.context):
            return StaleContext(len(self.context))
        before, self.context = self.context, np.concatenate([self.context[: request.offset], request.token_ids])
        self.context.flags.writeable = False
        if feature_bytes:
            self._keep(before, rows or NO_FEATURES)
        return None

    def _keep(self, before: Ids, rows: FeatureRows) -> None:
        """Hidden states of what is still in the context, then the new ones. before: the context that was."""
        n = min(len(before), len(self.context))
        changed = np.flatnonzero(before[:n] != self.context[:n])
        held = self.features.before(int(changed[0]) if len(changed) else n)
        self.features = held.joined(rows).before(len(self.context) - 1).tail(KEPT_ROWS)
