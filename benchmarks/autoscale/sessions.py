"""One generation as the simulation follows it, and what its coordinator would ask a drafter for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.autoscale.times import Forwards, Times
from benchmarks.autoscale.traces import Generation
from coordinator.drafting import GRACE, PATIENCE
from specdec.core.planner import MARGIN, PROBE
from specdec.core.speedup import expected_tokens

if TYPE_CHECKING:
    from benchmarks.autoscale.drafter import Drafter
    from benchmarks.autoscale.verifier import Verifier

LEARN = 0.2  # weight of a cycle in a running mean
LOOK = 8  # cycles after which a drafter that does not pay is looked at again
ALPHAS = 20  # steps from 0 to 1 in which plans tell acceptance rates apart
TENTHS = 10  # steps in which they tell apart how much of a draft comes in time
FIFTHS = 1 / math.log(1.2)
PLAIN_CONTEXT = 256  # behind which a plan prices forwards
DRAFT_TIMEOUT = 2.0  # seconds, the coordinator's default


@dataclass(slots=True, eq=False)
class Session:
    """context: tokens committed, prompt included; wanted: output tokens still to come. held, draft_held: tokens whose
    keys and values its verifier and its drafter have. k: draft tokens of the cycle in progress; pending: rows that its
    present message still needs; wanted_draft: draft tokens asked for. busy: messages in a forward, queue: wait over the
    forward's own time, draft_busy, draft_wait (seconds; draft_waited: the last one), draft_pace (seconds of a
    whole draft), came (draft tokens that came in time over those asked for): running means of its own cycles."""

    generation: Generation
    context: int
    wanted: int
    verifier: Verifier | None = None
    drafter: Drafter | None = None
    held: int = 0
    kv: int = 0
    draft_held: int = 0
    k: int = 0
    pending: int = 0
    arrived: float = 0.0
    asked: float = 0.0
    used: float = 0.0
    cycles: int = 0
    busy: float = 1.0
    queue: float = 0.0
    draft_busy: float = 1.0
    draft_waited: float = 0.0
    draft_wait: float = 0.0
    draft_pace: float | None = None
    came: float = 1.0
    wanted_draft: int = 0

    @property
    def draft_budget(self) -> float:
        """Seconds that its coordinator waits for a draft."""
        pace = self.draft_pace
        return DRAFT_TIMEOUT if pace is None else min(DRAFT_TIMEOUT, GRACE + PATIENCE * pace)

    def drafted(self, seconds: float, busy: int) -> None:
        self.came = _mean(self.came, self.k / self.wanted_draft)
        self.draft_pace = seconds if self.draft_pace is None else _mean(self.draft_pace, seconds)
        self.draft_wait = _mean(self.draft_wait, self.draft_waited)
        self.draft_busy = _mean(self.draft_busy, busy)

    def verified(self, wait: float, seconds: float, busy: int) -> None:
        self.queue = _mean(self.queue, wait / seconds)
        self.busy = _mean(self.busy, busy)


def _mean(mean: float, value: float) -> float:
    return mean + LEARN * (value - mean)


class Plans:
    """How many draft tokens promise most tokens a second, by the project's cost model, priced as its planner does:
    forwards as if all that share one drafted as much, and a draft must beat plain decoding by a margin that grows with
    the company. What the planner learns in a session's first cycles is taken to be known."""

    def __init__(self, times: Times, most: int) -> None:
        self._target, self._draft = Forwards(times.target), Forwards(times.draft)
        self._way, self._draft_way, self._most = times.verify_way, times.draft_way, most
        self._known: dict[tuple[int, ...], int] = {}
        self._tokens: dict[int, list[float]] = {}  # of a cycle by draft tokens, by alpha in ALPHAS-ths

    def choose(self, session: Session) -> int:
        most = min(self._most, session.wanted - 1)
        if most < 1:
            return 0
        wait, draft_busy = session.draft_wait, session.draft_busy
        alpha = round(ALPHAS * session.generation.alpha)
        came = math.ceil(TENTHS * session.came)
        key = (alpha, _step(session.busy), int(4 * session.queue), _step(1 + 50 * wait), _step(draft_busy), came)
        best = self._known.get(key)
        if best is None:
            best = self._known[key] = self._best(alpha, session.busy, session.queue, wait, draft_busy, came / TENTHS)
        if not best and session.cycles % LOOK == 0:
            return min(PROBE, most)
        return min(best, most)

    def _best(self, alpha: int, busy: float, queue: float, wait: float, draft_busy: float, came: float) -> int:
        tokens = self._tokens.get(alpha)
        if tokens is None:
            tokens = self._tokens[alpha] = [expected_tokens(alpha / ALPHAS, k) for k in range(self._most + 1)]
        line, step = self._target.line(PLAIN_CONTEXT), self._draft.seconds(draft_busy, PLAIN_CONTEXT)

        there = came * np.arange(self._most + 1)
        brings = np.interp(there, np.arange(self._most + 1), tokens)

        def rate(k: int) -> float:
            verify = (1 + queue) * line(busy * (1 + there[k])) + self._way
            return float(brings[k] / (verify + (wait + self._draft_way + there[k] * step if k else 0.0)))

        best = max(range(1, self._most + 1), key=rate)
        return best if rate(best) > rate(0) * (1 + MARGIN * (1 - 1 / max(1.0, busy))) else 0


def _step(value: float) -> int:
    """Steps of a fifth."""
    return round(math.log(max(1.0, value)) * FIFTHS)


Uniform = Callable[[], float]


def accepted(alpha: float, k: int, uniform: Uniform) -> int:
    """Draft tokens until the first that is refused, each accepted with chance alpha."""
    if not k or alpha <= 0:
        return 0
    u = uniform()
    return k if u <= alpha**k else int(math.log(u) / math.log(alpha))
