"""What turns learn of the draft sources, from each other and from those before them. Counts and times only, no token of
anyone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from coordinator.served import ServedDrafter
from coordinator.turn import Turn
from specdec.core import source_record
from specdec.core.planner import Planner, choose, handed_on, in_company, observe, pays, served_by
from specdec.core.source_record import NOTHING_KNOWN, TRIALS, CycleOutcome, Offer
from specdec.core.step_time import StepTimeTable

# One turn in so many lets drafters see hidden states all the same: that might pay, that do not.
TRIED_SOON, TRIED_AGAIN = 4, 16
WARMTHS, HOT = 5, 2.0  # temperatures that count as one: to a fifth, and all above
_FEW = 8  # draft tokens by which that is judged


@dataclass(slots=True)
class _Kind:
    """Of turns. known: where the next one begins; trying: whose draft is under way of a source hardly known."""

    known: Planner = field(default_factory=Planner)
    trying: dict[str, Learning] = field(default_factory=dict)


class Experience:
    """By the kind of turn, since greedy, coupled and sampled drafts are accepted differently, and the less the warmer.
    verifiers: how many share the turns."""

    def __init__(self, verifiers: Callable[[], int] = lambda: 1) -> None:
        self._verifiers = verifiers
        self._kinds: dict[tuple[bool, str, int], _Kind] = {}
        self._turns = 0
        self._running = 0

    @contextmanager
    def turn(self, turn: Turn) -> Iterator[Learning]:
        """From its beginning to its end, however it ends. Turns whose k is fixed are company too."""
        warmth = round(WARMTHS * min(turn.params.temperature, HOT))
        kind = self._kinds.setdefault((turn.params.greedy, turn.rule, warmth), _Kind())
        learning = Learning(self, kind)
        self._running += 1
        try:
            yield learning
        finally:
            self._running -= 1
            learning.end()

    @property
    def company(self) -> float:
        """Turns that share a verifier, as far as is known here."""
        return max(1.0, self._running / max(1, self._verifiers()))

    def try_again(self, hopeful: bool) -> bool:
        """Whether it is time for what did not pay, or for what was hardly tried but might: in the very first turn."""
        number, self._turns = self._turns, self._turns + 1
        return number % TRIED_SOON == 0 if hopeful else number % TRIED_AGAIN == TRIED_AGAIN - 1


class Learning:
    """One turn's planner. While next to nothing is known of a drafter, one session at a time asks it and all of the
    kind learn from that: where many begin at once, each would else pay for trials of its own, and all wait for them.
    """

    def __init__(self, experience: Experience, kind: _Kind) -> None:
        self._experience = experience
        self._kind = kind
        self._begun = self.planner = kind.known

    def wants_features(self, readers: Iterable[ServedDrafter], context: int, *, named: bool = False) -> bool:
        """Whether the turn asks for hidden states, which cost every cycle something. While none of the drafters that
        read them is known to pay, all but a few turns do without, also where one might. named: by the caller, who gets
        what might pay."""
        planner = in_company(self.planner, self._experience.company)
        offers = [Offer(reader.name, _FEW, reader.tree, shares=reader.shares) for reader in readers]
        verdicts = [pays(planner, offer, context) for offer in offers]
        if not offers or True in verdicts:
            return True
        hopeful = None in verdicts
        return (named and hopeful) or self._experience.try_again(hopeful)

    def choose(
        self, offers: Sequence[Offer], limit: int, context: int, step_times: StepTimeTable | None
    ) -> tuple[Offer | None, int]:
        """`planner.choose` among what no other session is trying."""
        planner = in_company(served_by(self.planner, step_times), self._experience.company)
        self.planner = self._informed(planner, offers)
        free = [offer for offer in offers if self._kind.trying.get(offer.source, self) is self]
        offer, k = choose(self.planner, free, limit, context)
        if offer is not None and k and self._is_trial(offer):
            self._kind.trying[offer.source] = self
        return offer, k

    def observe(self, cycle: CycleOutcome) -> None:
        """What the cycle that was chosen has brought."""
        self.planner = observe(self.planner, cycle)
        if self._kind.trying.get(cycle.drafter) is self:
            del self._kind.trying[cycle.drafter]
            self._tell(cycle.drafter)

    def end(self) -> None:
        """Leaves what was learned to those that come."""
        trying = self._kind.trying
        for source in [source for source, who in trying.items() if who is self]:
            del trying[source]  # the draft never came
        if self.planner.cycles:
            self._kind.known = self._handed_on()

    def _is_trial(self, offer: Offer) -> bool:
        known = self.planner.sources.get(offer.source, NOTHING_KNOWN)
        return known.asks < TRIALS

    def _informed(self, planner: Planner, offers: Sequence[Offer]) -> Planner:
        """With what others have found out by now about sources that it hardly knows."""
        news = {}
        for offer in offers:
            found = self._kind.known.sources.get(offer.source)
            if found is not None and self._is_trial(offer):
                own = planner.sources.get(offer.source, NOTHING_KNOWN)
                if found.asks > own.asks:
                    news[offer.source] = replace(found, last=planner.cycles + found.last)
        if not news:
            return planner
        self._begun = replace(self._begun, sources={**self._begun.sources, **news})
        return replace(planner, sources={**planner.sources, **news})

    def _tell(self, source: str) -> None:
        known = self._kind.known
        record = source_record.handed_on(self.planner.sources[source], NOTHING_KNOWN, self.planner.cycles)
        self._kind.known = replace(known, sources={**known.sources, source: record})

    def _handed_on(self) -> Planner:
        """Of sources that this turn did not ask, whatever is known of them by now."""
        begun, known = self._begun.sources, self._kind.known.sources
        asks = {name: record.asks for name, record in self.planner.sources.items()}
        others = {
            name: record
            for name, record in known.items()
            if asks.get(name, 0) <= begun.get(name, NOTHING_KNOWN).asks and asks.get(name, 0) < record.asks
        }
        planner = handed_on(self.planner, self._begun)
        return replace(planner, sources={**planner.sources, **others})
