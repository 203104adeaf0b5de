"""A scripted drafter that reads hidden states, and checks each row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from specdec.core.draft import Draft
from specdec.core.tree import DraftTree
from specdec.edge.messages import DrafterInfo, DraftRequest, ReplicaInfo
from tests.fakes.features import SIZE, row
from tests.fakes.replicas import ScriptedDrafter
from tests.fakes.scripted import Stream


@dataclass(eq=False)
class ReadingDrafter(ScriptedDrafter):
    """Guesses what `propose` does only where it has the row of the last position that the target has seen, otherwise
    something else. seen: length of the context and positions of the rows held, at each message; twice: positions that
    one stream carried more than once."""

    reads: tuple[int, ...] = (2, 5)
    made_for: str = "base"
    seen: list[tuple[int, list[int]]] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)

    def info(self) -> ReplicaInfo:
        info = super().info()
        infos = tuple(DrafterInfo(name, False, self.reads, SIZE, self.made_for) for name in info.drafters)
        return replace(info, drafter_infos=self.info_overrides.get("drafter_infos", infos))

    def _reply(self, stream: Stream, request: DraftRequest) -> Any:
        if request.offset > len(stream.tokens):
            return super()._reply(stream, request)
        after = [*stream.tokens[: request.offset], *request.token_ids.tolist()]
        changed = next((i for i, (a, b) in enumerate(zip(stream.tokens, after, strict=False)) if a != b), len(after))
        stream.rows = {i: data for i, data in stream.rows.items() if i < changed}
        if (rows := request.features) is not None:
            for i in range(rows.rows):
                self._take(stream, after, rows.offset + i, rows.take([i]).data)
        self.seen.append((len(after), sorted(stream.rows)))
        return super()._reply(stream, request)

    def _take(self, stream: Stream, tokens: list[int], position: int, data: bytes) -> None:
        assert position < len(tokens) - 1, f"a row of position {position} in a context of {len(tokens)}"
        assert data == row(self.reads, position, tokens[position]), f"position {position} has the row of another"
        if position in stream.rows:
            self.twice.append(position)
        stream.rows[position] = data

    def _compute(self, stream: Stream, request: DraftRequest) -> Draft:
        if self.propose is None:
            return super()._compute(stream, request)
        known = len(stream.tokens) - 2 in stream.rows
        guesses = self.propose(list(stream.tokens), request.num_draft_tokens)
        tokens = guesses if known else [(token + 1) % self.table.vocab_size for token in guesses]
        return Draft(DraftTree.chain(np.array(tokens, dtype=np.uint32)), drafter="reader")
