"""What a drafter is, and the drafters there are. A new one is one file beside this and one entry in `DRAFTERS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from draft_service.session import DraftSession
from specdec.core.draft import Draft, DraftKind
from specdec.core.errors import SpecdecError
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids

if TYPE_CHECKING:
    from draft_service.config import DraftConfig
    from specdec.edge.telemetry import ReplicaMetrics


@dataclass(frozen=True, slots=True, eq=False)
class DraftJob:
    """Guess what follows `context`: uint32[n], the whole context, not to be written to.

    num_draft_tokens: at most this many. kind: what the coordinator can judge, CHOSEN or SAMPLED; a drafter may
    answer CHOSEN to either. support: M, ids kept of a sampled law. turn_start: index in the context of the turn's first
    output token. deadline: on the drafter's clock, in seconds."""

    session: DraftSession
    context: Ids
    num_draft_tokens: int
    params: SamplingParams
    kind: DraftKind = DraftKind.CHOSEN
    support: int = 0
    seed: int = 0
    turn_start: int = 0
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class DraftModel:
    """What a drafter's model commits the replica to; the defaults fit any target. max_context in tokens, 0: no
    limit. The last four: what it needs of the coordinator, see `specdec.edge.messages.DrafterInfo`."""

    name: str = ""
    fingerprint: str = ""
    vocab_size: int = 0
    tokenizer_hash: str = ""
    dtype: str = ""
    max_context: int = 0
    eos_ids: tuple[int, ...] = ()
    tree: bool = False
    feature_layers: tuple[int, ...] = ()
    feature_size: int = 0
    target_base_fingerprint: str = ""


class Drafter(Protocol):
    """Driven by one thread. `model`, `kv_free` and `kv_total` (tokens) are read by others at any time."""

    @property
    def model(self) -> DraftModel: ...

    @property
    def kv_free(self) -> int: ...

    @property
    def kv_total(self) -> int: ...

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        """One outcome per job, in order: its draft (empty where there is nothing to guess or no time), an error
        that concerns this job alone, or None: not finished, the same job comes again. No two jobs share a session.

        A drafter that works in several forwards returns as soon as one job is finished, so that no job waits for a
        longer one and newcomers get in."""

    def close(self, session: DraftSession) -> None:
        """Forget the session, known or not."""


# build(config, metrics, argument). argument: what the entry of `--drafters` says behind the name and a colon.
Factory = Callable[["DraftConfig", "ReplicaMetrics", str | None], Drafter]


def _in(module: str) -> Factory:
    """The factory `build` of a module that is imported on use: an n-gram drafter must not need torch."""

    def build(config: DraftConfig, metrics: ReplicaMetrics, argument: str | None) -> Drafter:
        drafter: Drafter = import_module(module).build(config, metrics, argument)
        return drafter

    return build


DRAFTERS: Mapping[str, Factory] = {
    "ngram": _in("draft_service.drafters.ngram"),
    "suffix": _in("draft_service.drafters.suffix"),
    "lm": _in("draft_service.drafters.lm"),
    "self": _in("draft_service.drafters.self_draft"),
    "medusa": _in("draft_service.drafters.medusa"),
    "eagle": _in("draft_service.drafters.eagle"),
    "eagle2": _in("draft_service.drafters.eagle2"),
}
